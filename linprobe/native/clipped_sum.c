/* Clipped sums of softmax gradients, and the products in them.

   Rows stay in cache through scoring, clipping and summing. With few classes these are groups of rows, each read where it
   is while the next is prefetched; with many, whole runs, which are copied into tiles (runs.h). Classes are split into
   panels of at most PANEL classes and of nearly equal size, so that the sums of some rows, or of two vectors of features,
   stay in registers. vectors.h has the kernels, which are compiled once for each vector width. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The proofs need each float operation rounded as it is written. */
#define WIDER (FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2) /* than the type, as x87 has it */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || WIDER
#error "compile without -ffast-math, -ffinite-math-only and x87 arithmetic: the noise and the sums would be wrong"
#endif
#if defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "compile without -fassociative-math and -freciprocal-math: the noise and the sums would be wrong"
#endif

#define LINE 64  /* bytes of cache */
#define CHUNK 16 /* features in a chunk of packed weights; a cache line */
#define PANEL 6  /* classes in a panel, at most */
#define GROUP 32 /* rows in a group */
#define SLAB 64  /* chunks whose weights stay in cache while a group is scored */
#define RUN 128  /* rows of a float32 sum: SUM_ROWS in linprobe/gradients/rounding.py */
#define TILE 32  /* features in a tile of runs.h; every 2 LANES divide it */
#define SPARE 13 /* rows in a tile beyond those of a run: SPARE_ROWS in linprobe/gradients/backend.py */
#define MOST 64  /* largest n_classes of linprobe_clipped_sum */
#ifndef PAIRED
#define PAIRED 16 /* rows of a person, at most; at most GROUP: PAIRED_ROWS in linprobe/data/blocks.py */
#endif

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define CLASSES(p) (n_classes / panels + (p < n_classes % panels))
#define PLACE(rows, i) ((rows) ? (size_t)(rows)[i] : (i))
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#define WITH_CLASSES(n, F, ...)                                                                                        \
    switch (n) {                                                                                                       \
    case 1: F(__VA_ARGS__, 1); break;                                                                                  \
    case 2: F(__VA_ARGS__, 2); break;                                                                                  \
    case 3: F(__VA_ARGS__, 3); break;                                                                                  \
    case 4: F(__VA_ARGS__, 4); break;                                                                                  \
    case 5: F(__VA_ARGS__, 5); break;                                                                                  \
    default: F(__VA_ARGS__, 6);                                                                                        \
    }

/* Keep v in a register: GCC would load it again for each use, or sum in memory. */
#if defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v)
#endif

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(32), aligned(8), may_alias));

/* Further scores: out (n, n_classes), with row stride `room` in floats, = scores of features first to first + d with
   packed weights w. */
struct part {
    const float *w;
    float *out;
    size_t first, d, room;
    int n_classes;
};

/* Storage type of rows: STORAGE in linprobe/data/blocks.py. */
enum stored { FLOAT32, BFLOAT16, FLOAT16 };

/* Rows as they are stored, d numbers each, contiguous; float16 must be finite. places: which rows, or null for all in
   order. shift (d): subtracted from each row, which then gets one more feature, `column`; or null for rows as they
   are. */
struct rows {
    const void *x;
    const int64_t *places;
    const float *shift;
    size_t d;
    float column;
    int stored;
};

#define WIDTH(rows) ((rows)->d + ((rows)->shift != NULL))
#define SIZE(rows) ((rows)->stored == FLOAT32 ? sizeof(float) : sizeof(uint16_t))
#define ROW(rows, i) ((const char *)(rows)->x + SIZE(rows) * (rows)->d * PLACE((rows)->places, i))

/* People, n of them: rows bounds[u] to bounds[u + 1] are those of person u. Those with more than PAIRED rows, and those
   whose `joined` is 0, are left out. y, norms and weights have one entry for each row. inner: the inner products of the
   pairs of rows of each person with at most PAIRED, as linprobe_inner_products writes them. The factor is
   c = min(1, bound / max(norm, spread / most)), for the norm of the person's gradient and the summed norms of those of
   the rows. No run crosses a person in `ends`, increasing, the last is n: the cells of docs/proofs/people.md. weights,
   joined and ends may be null. */
struct people {
    const int64_t *bounds, *ends, *y;
    const double *norms, *weights, *inner;
    const uint8_t *joined;
    double *factors, *norms_of;
    double bound, most;
    size_t n;
};

#define SIZE_OF(people, u) ((size_t)((people)->bounds[(u) + 1] - (people)->bounds[u]))
#define PAIRS(people, u) (SIZE_OF(people, u) > PAIRED ? 0 : SIZE_OF(people, u) * (SIZE_OF(people, u) - 1) / 2)

#define KERNEL(name) plain_##name
#define VECTOR four
#define LANES 4
#include "vectors.h"

/* The widest vectors that are used, in floats: the processor is asked at run time, and tests set a smaller limit. */
#ifndef WIDEST
#define WIDEST 16
#endif

#if defined(__x86_64__)

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
#define KERNEL(name) avx2_##name
#define TARGET __attribute__((target("avx2,fma")))
#define VECTOR eight
#define LANES 8
#include "vectors.h"

typedef float sixteen __attribute__((vector_size(64), aligned(4), may_alias));
#define KERNEL(name) avx512_##name
#define TARGET __attribute__((target("avx512f")))
#define VECTOR sixteen
#define LANES 16
#include "vectors.h"

#define CALL(name, ...)                                                                                                \
    (WIDEST >= 16 && __builtin_cpu_supports("avx512f")                                ? avx512_##name(__VA_ARGS__)     \
     : WIDEST >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2_##name(__VA_ARGS__)       \
                                                                                      : plain_##name(__VA_ARGS__))
#else
#define CALL(name, ...) plain_##name(__VA_ARGS__)
#endif

/* Increment when a signature below changes: INTERFACE in linprobe/native/__init__.py. */
int linprobe_interface(void)
{
    return 16;
}

/* Floats in a vector on this processor: it decides the order in which scores are added. */
int linprobe_lanes(void)
{
    return CALL(lanes);
}

/* out (n, n_classes) = scores of x (n, d), whose row stride is `stride` floats. The scores of a row have the same bits
   at every position. w: packed weights, for each panel an array (chunks, classes, CHUNK), the last chunk of features
   padded with zeros. */
void linprobe_scores(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes, size_t stride)
{
    CALL(scores, x, w, out, n, d, n_classes, stride);
}

/* out (n, width) = n rows, float32 and translated */
void linprobe_load(const struct rows *from, float *out, size_t n)
{
    CALL(load, from, 0, out, n);
}

/* total += r^T x over rows places (n), or over the first n rows if places is null.
   x: rows (m, d), contiguous. r: residuals (m, n_classes), with row stride r_stride in floats.
   total: (n_classes, d rounded up to 32), with row stride `apart` in doubles. The sum of each run is rounded to a grid
   first, by adding and subtracting shift. A run has RUN rows, or ends where `ends` says: increasing, the last is n.
   room: buffer of (RUN + SPARE) * (d rounded up to 32) + RUN * n_classes floats. */
void linprobe_sum(const float *x, const float *r, const int64_t *places, const int64_t *ends, double *total,
                  float *room, size_t n, size_t d, int n_classes, size_t r_stride, size_t apart, double shift)
{
    CALL(sum, x, r, places, ends, total, room, n, d, n_classes, r_stride, apart, shift);
}

/* Widen x (n) to float32, exactly, infinities and NaNs included. */
void linprobe_widen(const uint16_t *x, int stored, float *out, size_t n)
{
    int odd = 0;
    CALL(widen, x, stored, out, n);
    for (size_t i = 0; i < n; i++) odd |= stored == FLOAT16 && (x[i] & 0x7c00) == 0x7c00;
    for (size_t i = 0; odd && i < n; i++)
        if ((x[i] & 0x7c00) == 0x7c00) { /* infinity or NaN */
            uint32_t bits;
            memcpy(&bits, out + i, sizeof bits);
            bits |= 0x7f800000;
            memcpy(out + i, &bits, sizeof bits);
        }
}

/* Round x (n) to float16, as bits; NaNs lose their payload. */
void linprobe_halve(const float *x, uint16_t *out, size_t n)
{
    CALL(halve, x, out, n);
}

/* In one pass over n rows: their softmax scores with w, clipped residuals c r for classes y and c = min(1, bound /
   (length |r|)), |r| in r_norms, c in factors, and linprobe_sum of c r. Also the scores of parts. y, lengths, r_norms,
   factors and parts have one entry for each of the n rows. summed: unless null, the places of the rows to sum, n_summed
   of them, increasing, in runs that end at `ends`; the others are scored and clipped only. n_classes is at most MOST.
   room: buffer of GROUP rows of float32, then of (width rounded up to 32) * n_classes floats, which are zero before and
   after the call. */
void linprobe_clipped_sum(const struct rows *from, float *room, const float *w, const int64_t *y, const double *lengths,
                          double bound, double *r_norms, double *factors, double *total, size_t n,
                          const int64_t *summed, size_t n_summed, const int64_t *ends, int n_classes, size_t apart,
                          double shift, const struct part *parts, int n_parts)
{
    CALL(clipped_sum, from, room, w, y, lengths, bound, r_norms, factors, total, n, summed, n_summed, ends, n_classes,
         apart, shift, parts, n_parts);
}

/* linprobe_clipped_sum for any n_classes. w, unless null, and the weights of parts are packed as runs.h says; the `room`
   of a part is a multiple of CHUNK. Without w, the scores of parts only. room: buffer of (RUN + SPARE + 1) * (width
   rounded up to 32) + 2 * RUN * (n_classes rounded up to CHUNK) floats, and with `summed`, of (RUN + SPARE) * (width
   rounded up to 32) + RUN * (n_classes rounded up to CHUNK) more. */
void linprobe_clipped_runs(const struct rows *from, float *room, const float *w, const int64_t *y, const double *lengths,
                           double bound, double *r_norms, double *factors, double *total, size_t n,
                           const int64_t *summed, size_t n_summed, const int64_t *ends, int n_classes, size_t apart,
                           double shift, const struct part *parts, int n_parts)
{
    CALL(clipped_runs, from, room, w, y, lengths, bound, r_norms, factors, total, n, summed, n_summed, ends, n_classes,
         apart, shift, parts, n_parts);
}

/* out: inner products of the pairs of rows of each person, in the order of `people`. wide: buffer of PAIRED rows of
   float32. Only bounds and n of people are read, and `joined`, which is null. */
void linprobe_inner_products(const struct rows *from, float *wide, const struct people *people, double *out)
{
    CALL(inner_products, from, wide, people, out);
}

/* Replace softmax scores r (rows of all people, n_classes), whose row stride `room` is a multiple of CHUNK, by
   residuals times the factor of the person, and write factors and norms. The padding of rows is overwritten. */
void linprobe_clip_people(float *r, size_t room, const struct people *people, int n_classes)
{
    CALL(clip_people, r, room, people, n_classes);
}

/* linprobe_scores with w, linprobe_clip_people and linprobe_sum, in one pass. Without a sum if total is null. room: as
   in linprobe_clipped_sum. n_classes is at most MOST. */
void linprobe_people(const struct rows *from, float *room, const float *w, const struct people *people, double *total,
                     int n_classes, size_t apart, double shift)
{
    CALL(people, from, room, w, people, total, n_classes, apart, shift);
}

/* linprobe_people for the people with more than PAIRED rows, any n_classes and no runs. room: as in linprobe_clipped_sum,
   and GROUP * (n_classes rounded up to CHUNK) floats more. */
void linprobe_formed(const struct rows *from, float *room, const float *w, const struct people *people, double *total,
                     int n_classes, size_t apart, double shift)
{
    CALL(formed, from, room, w, people, total, n_classes, apart, shift);
}

/* out (n) = value (n) plus noise of standard deviation scale grid from words (n), rounded to multiples of grid, a power of
   two; noise.h says how. Returns the number of uncertain ones, whose places are in doubtful, a buffer of n. */
size_t linprobe_first_look(const uint64_t *words, const double *value, double *out, uint32_t *doubtful, size_t n,
                           double scale, double grid, double unsure, uint64_t deep)
{
    return CALL(first_look, words, value, out, doubtful, n, scale, grid, unsure, deep);
}
