/* Clipped sums of softmax gradients, and what they are made of, where BLAS libraries copy more than they compute.

   Rows come in groups that stay in cache until they are done with, and meanwhile the next group is fetched. Classes come
   in panels of at most PANEL, as equal as they can be, so that the sums of two rows, or of two vectors of features, stay
   in registers. The kernels, in vectors.h, are compiled for vectors of several widths. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LINE 64  /* bytes of cache */
#define CHUNK 16 /* features whose weights lie together; a cache line */
#define PANEL 6  /* classes */
#define GROUP 32 /* rows that are scored, then summed */
#define SLAB 64  /* chunks whose weights are in cache meanwhile */
#define RUN 128  /* rows that are summed in float32: SUM_ROWS in products.py */
#define MOST 64  /* classes at most of linprobe_clipped_sum */

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#define CLASSES(p) (n_classes / panels + (p < n_classes % panels))
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

/* GCC would load a vector anew for each use, or sum in memory */
#if defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v)
#endif

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(32), aligned(8), may_alias));

/* further scores: out (n, n_classes) of d features from the first on, with w */
struct part {
    const float *w;
    float *out;
    size_t first, d;
    int n_classes;
};

/* how rows are stored: STORAGE in storage.py */
enum stored { FLOAT32, BFLOAT16, FLOAT16 };

#define KERNEL(name) plain_##name
#define VECTOR four
#define LANES 4
#include "vectors.h"

#if defined(__x86_64__) && !defined(PLAIN)

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
    (__builtin_cpu_supports("avx512f")                                 ? avx512_##name(__VA_ARGS__)                    \
     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2_##name(__VA_ARGS__)                      \
                                                                       : plain_##name(__VA_ARGS__))
#else
#define CALL(name, ...) plain_##name(__VA_ARGS__)
#endif

/* another number whenever a function below is called otherwise: INTERFACE in kernel.py */
int linprobe_interface(void)
{
    return 8;
}

/* out (n, n_classes) = scores of x (n, d), its rows stride floats apart, with w: of each panel (chunks, classes, CHUNK),
   the last chunk ending in zeros */
void linprobe_scores(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes, size_t stride)
{
    CALL(scores, x, w, out, n, d, n_classes, stride);
}

/* total (n_classes, d rounded up to 32), its rows `apart` doubles apart, += r^T x for x (n, d) and r (n, n_classes), its
   rows r_stride floats apart, of those who joined, or all if joined is null. The sum of every RUN rows is rounded: shift
   is added and taken off again. Room for (RUN + 1) times d rounded up to 32, and RUN times n_classes floats */
void linprobe_sum(const float *x, const float *r, const uint8_t *joined, double *total, float *room, size_t n, size_t d,
                  int n_classes, size_t r_stride, size_t apart, double shift)
{
    CALL(sum, x, r, joined, total, room, n, d, n_classes, r_stride, apart, shift);
}

/* out (n) floats = x (n), which are not */
void linprobe_widen(const uint16_t *x, int stored, float *out, size_t n)
{
    int odd = 0;
    CALL(widen, x, stored, out, n);
    for (size_t i = 0; i < n; i++) odd |= stored == FLOAT16 && (x[i] & 0x7c00) == 0x7c00;
    for (size_t i = 0; odd && i < n; i++)
        if ((x[i] & 0x7c00) == 0x7c00) { /* infinite, or no number */
            uint32_t bits;
            memcpy(&bits, out + i, sizeof bits);
            bits |= 0x7f800000;
            memcpy(out + i, &bits, sizeof bits);
        }
}

/* softmax scores r (n, n_classes), of any number of classes, its rows `room` floats apart, n_classes rounded up to 16 at
   least, to their residuals for classes y times c = min(1, bound / (length |r|)); also |r| to r_norms and c to factors,
   all (n) */
void linprobe_clip(float *r, size_t room, const int64_t *y, const double *lengths, double bound, double *r_norms,
                   double *factors, size_t n, int n_classes)
{
    CALL(clip_all, r, room, y, lengths, bound, r_norms, factors, n, n_classes);
}

/* total, as in linprobe_sum, += (c * r)^T x, with scores with w and then as linprobe_clip; and the scores of parts. Rows
   are stored so, finite if float16, and widened to (32, d) floats at wide where they are not floats; sums, zeros for d
   rounded up to 32 and n_classes, are zeros again afterwards */
void linprobe_clipped_sum(const void *x, int stored, float *wide, const float *w, const int64_t *y,
                          const double *lengths, double bound, double *r_norms, double *factors, double *total,
                          float *sums, size_t n, size_t d, int n_classes, size_t apart, double shift,
                          const struct part *parts, int n_parts)
{
    CALL(clipped_sum, x, stored, wide, w, y, lengths, bound, r_norms, factors, total, sums, n, d, n_classes, apart,
         shift, parts, n_parts);
}
