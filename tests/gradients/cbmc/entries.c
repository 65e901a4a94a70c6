/* Entry points of the kernel in CBMC, at one shape: N rows of D features, C classes. Arrays have the sizes that
   clipped_sum.c states, to the last number. Their values are any; so are places and ends that keep what it
   states. Vectors have four floats. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#undef __x86_64__ /* the plain kernel only */
#include "../../../linprobe/native/clipped_sum.c"

#define UP(n, to) (((n) + (to)-1) / (to) * (to))
#define ASSUME(what) __CPROVER_assume(what)
#ifndef STORED
#define STORED FLOAT32
#endif
#ifndef SHIFTED
#define SHIFTED 0 /* 1: rows are translated and get a column */
#endif
#ifndef SAMPLED
#define SAMPLED 0 /* rows that are summed; 0 for all */
#endif

#ifdef LAST /* this must fail: otherwise what is assumed leaves no case */
#define REACHED __CPROVER_assert(0, "reached")
#else
#define REACHED
#endif

#ifdef SHORT_OUT /* arrays that are too short by one number, which must be found */
#define OUT_SIZE (N * C - 1)
#else
#define OUT_SIZE (N * UP(C, CHUNK))
#endif
#ifdef SHORT_TOTAL
#define TOTAL_SIZE (C * UP(WIDE, TILE) - 1)
#else
#define TOTAL_SIZE (C * UP(WIDE, TILE))
#endif

typedef unsigned char byte;
enum { WIDE = D + SHIFTED, SIZES = STORED == FLOAT32 ? 4 : 2 };

static byte stored[N * D * SIZES] ALIGNED;
static float shift_of[D], wide_rows[N * WIDE], packed[C * UP(WIDE, CHUNK)];
static float scored[OUT_SIZE];
static double total[TOTAL_SIZE], step;
static int64_t places[N], ends[N + 1];

static struct rows given(void)
{
    struct rows from = {stored, NULL, SHIFTED ? shift_of : NULL, D, 1, STORED};
    return from;
}

/* any increasing places of SAMPLED rows in one or two runs */
static void choose(void)
{
    for (int i = 0; i < SAMPLED; i++) ASSUME((i ? places[i - 1] : -1) < places[i] && places[i] < N);
    if (SAMPLED) ASSUME(0 < ends[0] && ends[0] <= SAMPLED && (ends[0] == SAMPLED || ends[1] == SAMPLED));
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
    choose();
    if (SAMPLED) linprobe_sum((const float *)stored, r, places, ends, total, room, SAMPLED, D, C, C, UP(D, TILE), step);
    else linprobe_sum((const float *)stored, r, NULL, NULL, total, room, N, D, C, C, UP(D, TILE), step);
    REACHED;
}
