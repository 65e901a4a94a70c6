/* Calls every entry point of the kernel for all small shapes, and some beyond its groups, runs, tiles and panels. Each
   array is an allocation of the size that clipped_sum.c states, to the last number; compiled with AddressSanitizer
   and UndefinedBehaviorSanitizer, an access outside one ends the program. An argument names an array to allocate one
   number too short. Prints the number of calls. */

#include <stdio.h>
#include <stdlib.h>

static int widest; /* floats in a vector, at most */
#define WIDEST widest
#include "../../../linprobe/native/clipped_sum.c"

#define UP(n, to) (((n) + (to)-1) / (to) * (to))
#define ARRAY(type, name, n) type *name = allocated(#name, n, sizeof(type))
#define FLOATS(name, n) ARRAY(float, name, n); for (size_t at = 0; at < held(#name, n); at++) name[at] = (float)number()
#define DOUBLES(name, n) ARRAY(double, name, n); for (size_t at = 0; at < held(#name, n); at++) name[at] = number() + 1
#define ZEROS(name, n) ARRAY(float, name, n); memset(name, 0, sizeof(float) * held(#name, n))

enum { FULL = RUN + SPARE, ARRAYS = 64 };
static const char *too_short = "";
static void *all[ARRAYS];
static int n_all;
static long calls;

static double number(void) /* between -1 and 1 */
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)state * 0x1p-63;
}

/* n, or one less for the array that is too short */
static size_t held(const char *name, size_t n)
{
    return n - (n && !strcmp(name, too_short));
}

static void *allocated(const char *name, size_t n, size_t size)
{
    void *memory = malloc(size * held(name, n));
    if (!memory || n_all == ARRAYS) abort();
    return all[n_all++] = memory;
}

static void free_from(int first)
{
    while (n_all > first) free(all[--n_all]);
}

/* Which of n rows: those of `mask`, repeated; *ends gets the ends of runs: of one row each, or of RUN. */
static size_t choose(size_t n, unsigned mask, int each, int64_t **places, int64_t **ends, size_t *n_ends)
{
    size_t some = 0;
    for (size_t i = 0; i < n; i++) some += mask >> i % 4 & 1;
    ARRAY(int64_t, summed, some);
    *n_ends = each ? some : (some + RUN - 1) / RUN;
    ARRAY(int64_t, run_ends, *n_ends);
    for (size_t i = 0, k = 0; i < n; i++)
        if (mask >> i % 4 & 1) summed[k++] = (int64_t)i;
    for (size_t k = 0; k < *n_ends; k++) run_ends[k] = each ? (int64_t)k + 1 : (int64_t)LEAST(some, RUN * (k + 1));
    *places = summed;
    *ends = run_ends;
    return some;
}

/* n rows of d features of `count` that are stored; the arrays live until they are freed */
static struct rows rows_of(size_t n, size_t d, int stored, int shifted, int placed)
{
    size_t count = placed ? n + 1 : n;
    struct rows rows = {NULL, NULL, NULL, d, 1, stored};
    if (stored == FLOAT32) {
        FLOATS(x, count * d);
        rows.x = x;
    } else {
        ARRAY(uint16_t, narrow, count * d);
        for (size_t i = 0; i < held("narrow", count * d); i++) narrow[i] = (uint16_t)(0x3000 + 97 * i % 0x800); /* small, finite */
        rows.x = narrow;
    }
    if (shifted) {
        FLOATS(shift, d);
        rows.shift = shift;
    }
    if (placed) {
        ARRAY(int64_t, row_places, n);
        for (size_t i = 0; i < n; i++) row_places[i] = (int64_t)(n - i); /* the first row is not read */
        rows.places = row_places;
    }
    return rows;
}

static void check_rows(const struct rows *rows, size_t n, size_t d, int n_classes)
{
    int first = n_all;
    FLOATS(loaded, n * WIDTH(rows));
    linprobe_load(rows, loaded, n);
    calls++;
    if (rows->stored != FLOAT32 && !rows->places) {
        FLOATS(widened, n * d);
        linprobe_widen(rows->x, rows->stored, widened, n * d);
        calls++;
    } else if (!rows->shift && !rows->places) {
        ARRAY(uint16_t, halves, n * d);
        linprobe_halve(rows->x, halves, n * d);
        calls++;
        FLOATS(panels, n_classes * UP(d, CHUNK));
        FLOATS(scores, n * n_classes);
        linprobe_scores(rows->x, panels, scores, n, d, n_classes, d);
        calls++;
    }
    free_from(first);
}

static void check_sum(const struct rows *rows, size_t n, size_t d, int n_classes, unsigned mask, int each)
{
    int first = n_all;
    int64_t *places, *ends;
    size_t n_ends, some = choose(n, mask, each, &places, &ends, &n_ends), wide = UP(d, TILE), apart = wide + 8;
    FLOATS(residuals, n * n_classes);
    DOUBLES(sum_total, (n_classes - 1) * apart + wide);
    ARRAY(float, sum_room, FULL * wide + RUN * n_classes);
    linprobe_sum(rows->x, residuals, places, ends, sum_total, sum_room, some, d, n_classes, n_classes, apart, 0);
    linprobe_sum(rows->x, residuals, NULL, NULL, sum_total, sum_room, n, d, n_classes, n_classes, apart, 0);
    calls += 2;
    free_from(first);
}

/* by groups (few classes) or by runs; all rows with `ends` of their own, or those of the mask */
static void check_clipped(const struct rows *rows, size_t n, int n_classes, unsigned mask, int each, int in_runs)
{
    int first = n_all, chosen = mask != 15;
    int64_t *summed, *ends;
    size_t n_ends, some = choose(n, mask, each, &summed, &ends, &n_ends), d = WIDTH(rows), wide = UP(d, TILE);
    size_t lines = UP(n_classes, CHUNK), apart = wide + 8, more = chosen ? FULL * wide + RUN * lines : 0;
    ARRAY(int64_t, y, n);
    for (size_t i = 0; i < n; i++) y[i] = (int64_t)i % n_classes;
    DOUBLES(lengths, n);
    DOUBLES(r_norms, n);
    DOUBLES(factors, n);
    DOUBLES(total, (n_classes - 1) * apart + wide);
    FLOATS(part_weights, CHUNK);
    FLOATS(part_scores, n * CHUNK);
    const struct part part = {part_weights, part_scores, d - 1, 1, CHUNK, 1};
    const struct part *parts = d ? &part : NULL;
    ARRAY(float, run_room, (FULL + 1) * wide + 2 * RUN * lines + more);
    ZEROS(group_room, GROUP * d + wide * n_classes);
    FLOATS(lines_of_weights, lines * d);
    FLOATS(panels_of_weights, n_classes * UP(d, CHUNK));
    (in_runs ? linprobe_clipped_runs : linprobe_clipped_sum)(
        rows, in_runs ? run_room : group_room, in_runs ? lines_of_weights : panels_of_weights, y, lengths, 1, r_norms,
        factors, total, n, chosen ? summed : NULL, chosen ? some : 0, ends, n_classes, apart, 0, parts, d > 0);
    if (in_runs && !chosen)
        linprobe_clipped_runs(rows, run_room, NULL, NULL, NULL, 0, NULL, NULL, NULL, n, NULL, 0, NULL, n_classes, apart,
                              0, parts, d > 0);
    calls += 1 + (in_runs && !chosen);
    free_from(first);
}

/* People of the given numbers of rows; `joined`: who is in the sum; a cell ends behind the first person and the last. */
static void check_people(const struct rows *rows, const int *sizes, size_t n_people, int n_classes, unsigned joined_mask)
{
    int first = n_all;
    size_t d = WIDTH(rows), wide = UP(d, TILE), apart = wide + 8, lines = UP(n_classes, CHUNK), n, n_pairs = 0;
    ARRAY(int64_t, bounds, n_people + 1);
    ARRAY(int64_t, cells, n_people > 1 ? 2 : 1);
    ARRAY(uint8_t, joined, n_people);
    bounds[0] = 0;
    for (size_t u = 0; u < n_people; u++) {
        bounds[u + 1] = bounds[u] + sizes[u];
        joined[u] = joined_mask >> u & 1;
        n_pairs += sizes[u] > PAIRED ? 0 : sizes[u] * (sizes[u] - 1) / 2;
    }
    n = (size_t)bounds[n_people];
    cells[0] = 1;
    cells[n_people > 1] = (int64_t)n_people;
    ARRAY(int64_t, person_y, n);
    for (size_t i = 0; i < n; i++) person_y[i] = (int64_t)i % n_classes;
    DOUBLES(norms, n);
    DOUBLES(weights, n);
    DOUBLES(pairs, n_pairs);
    DOUBLES(person_factors, n_people);
    DOUBLES(person_norms, n_people);
    DOUBLES(person_total, (n_classes - 1) * apart + wide);
    FLOATS(scored, n * lines);
    FLOATS(person_panels, n_classes * UP(d, CHUNK));
    ARRAY(float, wide_rows, PAIRED * d);
    ZEROS(person_room, GROUP * d + wide * n_classes);
    ZEROS(formed_room, GROUP * d + wide * n_classes + GROUP * lines);
    struct people people = {bounds, NULL, person_y, norms, NULL, pairs, NULL, person_factors, person_norms, 1, 2, n_people};
    linprobe_inner_products(rows, wide_rows, &people, pairs);
    linprobe_clip_people(scored, lines, &people, n_classes);
    if (n_classes <= MOST) linprobe_people(rows, person_room, person_panels, &people, NULL, n_classes, apart, 0);
    linprobe_formed(rows, formed_room, person_panels, &people, NULL, n_classes, apart, 0);
    people.ends = cells;
    people.weights = weights;
    people.joined = joined;
    linprobe_clip_people(scored, lines, &people, n_classes);
    if (n_classes <= MOST) linprobe_people(rows, person_room, person_panels, &people, person_total, n_classes, apart, 0);
    linprobe_formed(rows, formed_room, person_panels, &people, person_total, n_classes, apart, 0);
    calls += 5 + 2 * (n_classes <= MOST);
    free_from(first);
}

static void check_shape(size_t n, size_t d, int n_classes, int stored, int shifted, int placed)
{
    static const int people[][3] = {{1, 1, 2}, {0, 3, 1}, {4, 0, 0}, {PAIRED, PAIRED, PAIRED + 1}, {2, PAIRED, 15},
                                    {2 * GROUP + 1, 0, GROUP}};
    int first = n_all;
    struct rows rows = rows_of(n, d, stored, shifted, placed);
    int plain = stored == FLOAT32 && !shifted && !placed;
    check_rows(&rows, n, d, n_classes);
    for (unsigned mask = 0; mask < 16; mask++)
        for (int each = 0; each < 2; each++) {
            if ((n < 4 && mask >> n && mask != 15) || (n > 4 && mask != 5 && mask != 15)) continue;
            if (each && !(mask & (mask - 1))) continue; /* one run in any case */
            if (plain) check_sum(&rows, n, d, n_classes, mask, each);
            check_clipped(&rows, n, n_classes, mask, each, 1);
            if (n_classes <= MOST) check_clipped(&rows, n, n_classes, mask, each, 0);
        }
    free_from(first);
    for (size_t k = 0; n == 4 && k < sizeof people / sizeof *people; k++) {
        const int *sizes = people[k];
        struct rows theirs = rows_of((size_t)(sizes[0] + sizes[1] + sizes[2]), d, stored, shifted, placed);
        for (unsigned mask = k < 3 ? 0 : 5; mask < 8; mask++) check_people(&theirs, sizes, 3, n_classes, mask);
        free_from(first);
    }
}

static void check_noise(size_t n)
{
    int first = n_all;
    ARRAY(uint64_t, words, n);
    for (size_t i = 0; i < n; i++) words[i] = (uint64_t)(number() * 0x1p62) << 2 | i % 4;
    DOUBLES(values, n);
    DOUBLES(noisy, n);
    ARRAY(uint32_t, doubtful, n);
    for (int all_of_them = 0; all_of_them < 2; all_of_them++)
        linprobe_first_look(words, values, noisy, doubtful, n, 1e6, 0x1p-20, 0.01, all_of_them ? UINT64_MAX : 0);
    calls += 2;
    free_from(first);
}

int main(int argc, char **argv)
{
    static const size_t beyond[][3] = {{33, 5, 2},   {129, 33, 7}, {128, 32, 16}, {141, 17, 17},
                                       {4, 1041, 3}, {4, 40, 65},  {4, 32, 16}};
    int few = argc > 1 && !strcmp(argv[1], "few");
    if (argc > 1) too_short = argv[1];
    widest = 16;
    for (size_t n = 0; n <= 4; n++) check_noise(n);
    for (size_t n = 255; n <= 258; n++) check_noise(n);
    for (int kind = 0; kind < 18; kind++) { /* each storage type, with and without places, at some vector width */
        if (few && kind != 0 && kind != 10 && kind != 17) continue; /* each storage type and each width once */
        int stored = kind % 3, shifted = kind / 3 % 2, width = kind / 6, placed = (stored + shifted + width) % 2;
        widest = 4 << width;
        for (size_t k = 0; k < sizeof beyond / sizeof *beyond; k++)
            check_shape(beyond[k][0], beyond[k][1], (int)beyond[k][2], stored, shifted, placed);
        for (size_t n = 0; n <= 4; n++)
            for (size_t d = 0; d <= 9; d++)
                for (int n_classes = 1; n_classes <= 5; n_classes++)
                    check_shape(n, d, n_classes, stored, shifted, placed);
    }
    printf("%ld calls with vectors of at most %d floats, interface %d\n", calls, linprobe_lanes(), linprobe_interface());
    return 0;
}
