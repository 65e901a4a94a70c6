/* Entry points of the kernel in CBMC, at one shape: N rows of D features, C classes. Arrays have the sizes that
   clipped_sum.c states, to the last number. Their values are any, and so is what the functions of libm
   return. Vectors have four floats. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

double nondet_double(void);
double log(double x) { return nondet_double(); }
double rint(double x) { return nondet_double(); }
double sqrt(double x) { return nondet_double(); }

#undef __x86_64__ /* the plain kernel only */
#include "../../../linprobe/native/clipped_sum.c"

#define UP(n, to) (((n) + (to)-1) / (to) * (to))
#ifndef STORED
#define STORED FLOAT32
#endif
#ifndef SHIFTED
#define SHIFTED 0 /* 1: rows are translated and get a column */
#endif
#ifndef CHOSEN
#define CHOSEN 0 /* mask of the rows that are summed, and of the people; 0 for all, without a list of them */
#endif

#ifdef LAST /* this must fail: otherwise what is assumed leaves no case */
#define REACHED __CPROVER_assert(0, "reached")
#else
#define REACHED
#endif

#ifndef SHORT
#define SHORT NONE /* the array that is too short by one number, which must be found */
#endif
enum { NONE, OUT, TOTAL, FACTORS, INNER };
#define LENGTH(array, n) ((n) - (SHORT == array))

typedef unsigned char byte;
enum { WIDE = D + SHIFTED, SIZES = STORED == FLOAT32 ? 4 : 2 };

static byte stored[N * D * SIZES] ALIGNED;
static float shift_of[D], wide_rows[N * WIDE], packed[C * UP(WIDE, CHUNK)];
static float scored[LENGTH(OUT, N * C)], group_room[GROUP * WIDE + UP(WIDE, TILE) * C];
static double total[LENGTH(TOTAL, C * UP(WIDE, TILE))], step, bound;
static double lengths[N], r_norms[N], factors[LENGTH(FACTORS, N)];
static int64_t places[N], ends[N + 1], y[N];

static struct rows given(void)
{
    struct rows from = {stored, NULL, SHIFTED ? shift_of : NULL, D, 1, STORED};
    return from;
}

/* The places of the chosen rows, of which the first is a run and the others are one; returns how many there are. */
static size_t choose(void)
{
    size_t n = 0;
    for (int i = 0; i < N; i++)
        if (CHOSEN >> i & 1) places[n++] = i;
    ends[0] = 1;
    ends[1] = n;
    return n;
}

void check_interface(void)
{
    __CPROVER_assert(linprobe_interface() > 0 && linprobe_lanes() == 4, "constants");
    REACHED;
}

void check_load(void)
{
    struct rows from = given();
    linprobe_load(&from, wide_rows, N);
    REACHED;
}

void check_widen(void)
{
    linprobe_widen((const uint16_t *)stored, STORED, wide_rows, N * D);
    REACHED;
}

void check_scores(void)
{
    linprobe_scores((const float *)stored, packed, scored, N, D, C, D);
    REACHED;
}

void check_sum(void)
{
    static float room[(RUN + SPARE) * UP(D, TILE) + RUN * C], r[N * C];
    size_t n = choose();
    linprobe_sum((const float *)stored, r, n ? places : NULL, n ? ends : NULL, total, room, n ? n : N, D, C, C,
                 UP(D, TILE), step);
    REACHED;
}

/* a sum of all rows, or of chosen ones, and the scores of the last feature for one class */
#define CLIPPED(entry, room, weights, part_room)                                                                       \
    static float part_weights[CHUNK], part_scores[(N - 1) * CHUNK + part_room];                                        \
    const struct part part = {part_weights, part_scores, WIDE - 1, 1, CHUNK, 1};                                       \
    struct rows from = given();                                                                                        \
    size_t n = choose();                                                                                               \
    entry(&from, room, weights, y, lengths, bound, r_norms, factors, total, N, n ? places : NULL, n, n ? ends : NULL,  \
          C, UP(WIDE, TILE), step, &part, 1);                                                                          \
    REACHED

void check_clipped_sum(void)
{
    CLIPPED(linprobe_clipped_sum, group_room, packed, 1);
}

void check_clipped_runs(void)
{
    enum { TILES = (RUN + SPARE) * UP(WIDE, TILE), OF_RUN = RUN * UP(C, CHUNK) };
    static float room[TILES + UP(WIDE, TILE) + 2 * OF_RUN + (CHOSEN ? TILES + OF_RUN : 0)];
    static float weights[UP(C, CHUNK) * WIDE];
    CLIPPED(linprobe_clipped_runs, room, weights, CHUNK);
}

/* two people and a cell for each: one has all rows but the last */
static struct people two(void)
{
    static int64_t bounds[3];
    static double weights[N], inner[(N - 1) * (N - 2) / 2 + 1], norms[2], clipping[LENGTH(FACTORS, 2)], most;
    static uint8_t joined[2];
    static int64_t cells[2];
    bounds[0] = 0;
    bounds[1] = N - 1;
    bounds[2] = N;
    for (int u = 0; u < 2; u++) {
        cells[u] = u + 1;
        joined[u] = CHOSEN >> u & 1;
    }
    struct people given = {bounds, cells, y, lengths, weights, inner, CHOSEN ? joined : NULL, clipping, norms, bound,
                           most, 2};
    return given;
}

void check_inner_products(void)
{
    static float wide[PAIRED * WIDE];
    static double products[LENGTH(INNER, (N - 1) * (N - 2) / 2)];
    struct rows from = given();
    struct people people = two();
    linprobe_inner_products(&from, wide, &people, products);
    REACHED;
}

void check_clip_people(void)
{
    static float r[N * UP(C, CHUNK)];
    struct people people = two();
    linprobe_clip_people(r, UP(C, CHUNK), &people, C);
    REACHED;
}

void check_people(void)
{
    struct rows from = given();
    struct people people = two();
    linprobe_people(&from, group_room, packed, &people, total, C, UP(WIDE, TILE), step);
    REACHED;
}

/* with a smaller PAIRED, so that a person has more rows */
void check_formed(void)
{
    static float room[GROUP * WIDE + UP(WIDE, TILE) * C + GROUP * UP(C, CHUNK)];
    struct rows from = given();
    struct people people = two();
    linprobe_formed(&from, room, packed, &people, total, C, UP(WIDE, TILE), step);
    REACHED;
}

void check_first_look(void)
{
    static uint64_t words[N], deep;
    static double value[N], out[LENGTH(OUT, N)], scale, grid, unsure;
    static uint32_t doubtful[N];
    linprobe_first_look(words, value, out, doubtful, N, scale, grid, unsure, deep);
    REACHED;
}
