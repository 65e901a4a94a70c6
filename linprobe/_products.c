/* Products of rows with few classes, for which BLAS libraries copy the rows.

   Classes come in panels of at most PANEL, as equal as they can be, so that the sums of two rows, or of two vectors of
   features, stay in registers. The first panel brings rows from memory; for the others they are in cache. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 16  /* features whose weights lie together; a cache line */
#define PANEL 6   /* classes */
#define MOST 64   /* classes at most */
#define GROUP 32  /* rows whose scores are taken at a time, and that are summed at a time */
#define SLAB 64   /* chunks of those rows that are in cache meanwhile */
#define WIDE 256  /* features whose sums are in cache */
#define RUN 128   /* rows that are summed in float32: SUM_ROWS in products.py */

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define CLASSES(p) (n_classes / panels + (p < n_classes % panels))
#define WITH_CLASSES(n, F, ...)                                                                                        \
    switch (n) {                                                                                                       \
    case 1: F(__VA_ARGS__, 1); break;                                                                                  \
    case 2: F(__VA_ARGS__, 2); break;                                                                                  \
    case 3: F(__VA_ARGS__, 3); break;                                                                                  \
    case 4: F(__VA_ARGS__, 4); break;                                                                                  \
    case 5: F(__VA_ARGS__, 5); break;                                                                                  \
    default: F(__VA_ARGS__, 6);                                                                                        \
    }

/* GCC would load a vector anew for each use */
#if defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v)
#endif

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#define DEFINE(NAME, TARGET, VECTOR, LANES)                                                                            \
    /* the sum of a vector */                                                                                          \
    TARGET INLINE float NAME##_across(const VECTOR *v)                                                                 \
    {                                                                                                                  \
        four sum = ((const four *)v)[0];                                                                               \
        EACH(q, LANES / 4 - 1) sum += ((const four *)v)[q + 1];                                                        \
        return (sum[0] + sum[2]) + (sum[1] + sum[3]);                                                                  \
    }                                                                                                                  \
    /* adds to the scores of rows a and b those of some chunks, fetching from next_a and next_b meanwhile */           \
    TARGET INLINE void NAME##_dots(const float *a, const float *b, const float *w, float *out_a, float *out_b,         \
                                   size_t chunks, const float *next_a, const float *next_b, const int classes)         \
    {                                                                                                                  \
        VECTOR sum_a[PANEL] = {{0}}, sum_b[PANEL] = {{0}};                                                             \
        for (size_t k = 0; k < chunks; k++, a += CHUNK, b += CHUNK, w += CHUNK * classes) {                            \
            __builtin_prefetch(next_a + CHUNK * k, 0, 2);                                                              \
            __builtin_prefetch(next_b + CHUNK * k, 0, 2);                                                              \
            EACH(h, CHUNK / LANES) {                                                                                   \
                VECTOR in_a = *(const VECTOR *)(a + LANES * h), in_b = *(const VECTOR *)(b + LANES * h);               \
                EACH(c, classes) {                                                                                     \
                    VECTOR column = *(const VECTOR *)(w + CHUNK * c + LANES * h);                                      \
                    IN_REGISTER(column);                                                                               \
                    sum_a[c] += in_a * column;                                                                         \
                    sum_b[c] += in_b * column;                                                                         \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        EACH(c, classes) {                                                                                             \
            out_a[c] += NAME##_across(sum_a + c);                                                                      \
            if (out_b != out_a) out_b[c] += NAME##_across(sum_b + c);                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    /* sum (classes, 2 LANES) += r^T x, keeping a copy of x if wanted */                                               \
    TARGET INLINE void NAME##_outer(const float *x, size_t stride, const float *r, size_t r_stride, float *sum,        \
                                    size_t n, float *copy, const float *next, const int keep,                          \
                                    const int classes)                                                                 \
    {                                                                                                                  \
        VECTOR sum_a[PANEL], sum_b[PANEL];                                                                             \
        EACH(c, classes) {                                                                                             \
            sum_a[c] = *(const VECTOR *)(sum + 2 * LANES * c);                                                         \
            sum_b[c] = *(const VECTOR *)(sum + 2 * LANES * c + LANES);                                                 \
        }                                                                                                              \
        for (size_t i = 0; i < n; i++, x += stride, r += r_stride) {                                                   \
            VECTOR in_a = *(const VECTOR *)x, in_b = *(const VECTOR *)(x + LANES);                                     \
            if (keep) {                                                                                                \
                EACH(l, (2 * LANES + CHUNK - 1) / CHUNK) {                                                             \
                    size_t line = (2 * LANES + CHUNK - 1) / CHUNK * i + l;                                             \
                    __builtin_prefetch(next + line * CHUNK / WIDE * stride + line * CHUNK % WIDE, 0, 2);               \
                }                                                                                                      \
                *(VECTOR *)copy = in_a;                                                                                \
                *(VECTOR *)(copy + LANES) = in_b;                                                                      \
                copy += 2 * LANES;                                                                                     \
            }                                                                                                          \
            EACH(c, classes) {                                                                                         \
                sum_a[c] += in_a * r[c];                                                                               \
                sum_b[c] += in_b * r[c];                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        EACH(c, classes) {                                                                                             \
            *(VECTOR *)(sum + 2 * LANES * c) = sum_a[c];                                                               \
            *(VECTOR *)(sum + 2 * LANES * c + LANES) = sum_b[c];                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void NAME##_scores(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes)    \
    {                                                                                                                  \
        int panels = (n_classes + PANEL - 1) / PANEL;                                                                  \
        size_t chunks = d / CHUNK, tail = d % CHUNK, all = chunks + (tail > 0);                                        \
        memset(out, 0, sizeof(float) * n * n_classes);                                                                 \
        for (size_t i = 0; i < n; i += GROUP)                                                                          \
            for (size_t k = 0; k < all; k += SLAB) {                                                                   \
                size_t whole = LEAST(chunks - k, SLAB);                                                                \
                const float *panel = w;                                                                                \
                for (int p = 0, c = 0; p < panels; p++) {                                                              \
                    int classes = CLASSES(p);                                                                          \
                    const float *columns = panel + CHUNK * classes * k;                                                \
                    for (size_t t = i; t < LEAST(i + GROUP, n); t += 2) {                                              \
                        size_t u = LEAST(t + 1, n - 1);                                                                \
                        const float *a = x + d * t + CHUNK * k, *b = x + d * u + CHUNK * k;                            \
                        float *out_a = out + n_classes * t + c, *out_b = out + n_classes * u + c;                      \
                        const float *next = k + SLAB < all ? a + CHUNK * SLAB : x + d * (t + GROUP);                   \
                        const float *next_a = p == 0 ? next : next + d, *next_b = panels > 1 ? next_a : next + d;      \
                        WITH_CLASSES(classes, NAME##_dots, a, b, columns, out_a, out_b, whole, next_a, next_b)         \
                        if (tail && k + SLAB >= all) {                                                                 \
                            float ends[2][CHUNK] = {{0}};                                                              \
                            memcpy(ends[0], a + CHUNK * whole, sizeof(float) * tail);                                  \
                            memcpy(ends[1], b + CHUNK * whole, sizeof(float) * tail);                                  \
                            WITH_CLASSES(classes, NAME##_dots, ends[0], ends[1], columns + CHUNK * classes * whole,    \
                                         out_a, out_b, 1, a, b)                                                        \
                        }                                                                                              \
                    }                                                                                                  \
                    panel += CHUNK * classes * all;                                                                    \
                    c += classes;                                                                                      \
                }                                                                                                      \
            }                                                                                                          \
    }                                                                                                                  \
    TARGET static void NAME##_sum(const float *x, const float *r, double *total, size_t n, size_t d, int n_classes,    \
                                  size_t r_stride)                                                                     \
    {                                                                                                                  \
        int panels = (n_classes + PANEL - 1) / PANEL;                                                                  \
        /* tiles keep to cache lines */                                                                                \
        ptrdiff_t before = (uintptr_t)x / sizeof(float) % LEAST(CHUNK, 2 * LANES);                                     \
        float sums[WIDE * MOST] ALIGNED, copy[GROUP * 2 * LANES] ALIGNED;                                              \
        for (size_t start = 0; start < n; start += RUN)                                                                \
            for (ptrdiff_t slab = -before; slab < (ptrdiff_t)d; slab += WIDE) {                                        \
                ptrdiff_t stop = LEAST((ptrdiff_t)d, slab + WIDE);                                                     \
                memset(sums, 0, sizeof(float) * WIDE * n_classes);                                                     \
                for (size_t i = start; i < LEAST(start + RUN, n); i += GROUP) {                                        \
                    size_t rows = LEAST(LEAST(start + RUN, n) - i, GROUP);                                             \
                    float *sum = sums;                                                                                 \
                    for (ptrdiff_t j = slab; j < stop; j += 2 * LANES) {                                               \
                        int edge = j < 0 || j + 2 * LANES > (ptrdiff_t)d;                                              \
                        if (edge) {                                                                                    \
                            ptrdiff_t first = j < 0 ? 0 : j, last = LEAST(j + 2 * LANES, (ptrdiff_t)d);                \
                            memset(copy, 0, sizeof copy);                                                              \
                            for (size_t t = 0; t < rows; t++)                                                          \
                                memcpy(copy + 2 * LANES * t + (first - j), x + d * (i + t) + first,                    \
                                       sizeof(float) * (last - first));                                                \
                        }                                                                                              \
                        for (int p = 0, c = 0; p < panels; p++) {                                                      \
                            int classes = CLASSES(p);                                                                  \
                            const float *factors = r + r_stride * i + c;                                               \
                            if (p == 0 && !edge) {                                                                     \
                                WITH_CLASSES(classes, NAME##_outer, x + d * i + j, d, factors, r_stride, sum, rows,    \
                                             copy, x + d * (i + GROUP + (j - slab) * GROUP / WIDE) + slab, 1)          \
                            } else {                                                                                   \
                                WITH_CLASSES(classes, NAME##_outer, copy, 2 * LANES, factors, r_stride, sum, rows,     \
                                             copy, x, 0)                                                               \
                            }                                                                                          \
                            sum += 2 * LANES * classes;                                                                \
                            c += classes;                                                                              \
                        }                                                                                              \
                    }                                                                                                  \
                }                                                                                                      \
                const float *sum = sums;                                                                               \
                for (ptrdiff_t j = slab; j < stop; j += 2 * LANES)                                                     \
                    for (int c = 0; c < n_classes; c++, sum += 2 * LANES) {                                            \
                        double *to = total + d * c;                                                                    \
                        if (j >= 0 && j + 2 * LANES <= (ptrdiff_t)d)                                                   \
                            for (int l = 0; l < 2 * LANES; l++) to[j + l] += sum[l];                                   \
                        else                                                                                           \
                            for (int l = 0; l < 2 * LANES; l++)                                                        \
                                if (j + l >= 0 && j + l < (ptrdiff_t)d) to[j + l] += sum[l];                           \
                    }                                                                                                  \
            }                                                                                                          \
    }

DEFINE(plain, , four, 4)

#if defined(__x86_64__)
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float sixteen __attribute__((vector_size(64), aligned(4), may_alias));
DEFINE(avx2, __attribute__((target("avx2,fma"))), eight, 8)
DEFINE(avx512, __attribute__((target("avx512f"))), sixteen, 16)
#define CALL(KERNEL, ...)                                                                                              \
    (__builtin_cpu_supports("avx512f")                                 ? avx512_##KERNEL(__VA_ARGS__)                  \
     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2_##KERNEL(__VA_ARGS__)                    \
                                                                       : plain_##KERNEL(__VA_ARGS__))
#else
#define CALL(KERNEL, ...) plain_##KERNEL(__VA_ARGS__)
#endif

/* out (n, n_classes) = scores of x (n, d) with w: of each panel (chunks, classes, CHUNK), the last chunk ending in
   zeros */
void linprobe_scores(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes)
{
    CALL(scores, x, w, out, n, d, n_classes);
}

/* total (n_classes, d) += r^T x for x (n, d) and r (n, n_classes), its rows r_stride floats apart */
void linprobe_sum(const float *x, const float *r, double *total, size_t n, size_t d, int n_classes, size_t r_stride)
{
    CALL(sum, x, r, total, n, d, n_classes, r_stride);
}
