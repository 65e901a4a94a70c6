/* The kernels of clipped_sum.c with vectors of LANES floats, included once for each width. A stride is the distance
   from one row of a matrix to the next: stride, room and r_stride in floats, apart in doubles. */

#if !defined(TARGET)
#define TARGET
#endif
#define ROWS (LANES < 16 ? 2 : 4) /* scored together; their sums stay in registers */

typedef int32_t KERNEL(ints) __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t KERNEL(bits) __attribute__((vector_size(4 * LANES), may_alias));
typedef float KERNEL(half) __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double KERNEL(wide) __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

/* a in lanes where `first` is all ones, b where it is zero */
TARGET INLINE VECTOR KERNEL(either)(KERNEL(ints) first, VECTOR a, VECTOR b)
{
    return (VECTOR)((first & (KERNEL(ints))a) | (~first & (KERNEL(ints))b));
}

/* sum of all lanes */
TARGET INLINE float KERNEL(across)(VECTOR x)
{
    four sum = ((const four *)&x)[0];
    EACH(q, LANES / 4 - 1) sum += ((const four *)&x)[q + 1];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* maximum of all lanes */
TARGET INLINE float KERNEL(largest)(VECTOR x)
{
    four most = ((const four *)&x)[0];
    EACH(q, LANES / 4 - 1)
    {
        four other = ((const four *)&x)[q + 1];
        most = plain_either(other > most, other, most);
    }
    float even = most[0] > most[2] ? most[0] : most[2], odd = most[1] > most[3] ? most[1] : most[3];
    return even > odd ? even : odd;
}

/* Add the scores over some chunks, from feature `first` on, to the scores of ROWS rows. The last ones may be the same row,
   with n different ones in all. Prefetch `ahead` floats further on, unless 0. */
TARGET INLINE void KERNEL(dots)(const float *const *x, size_t first, const float *w, float *out, size_t room, size_t n,
                                size_t chunks, size_t ahead, const int classes)
{
    VECTOR sums[ROWS][PANEL] = {{{0}}};
    const float *rows[ROWS];
    EACH(t, ROWS) rows[t] = x[LEAST((size_t)t, n - 1)] + first;
    for (size_t k = 0; k < CHUNK * chunks; k += CHUNK, w += CHUNK * classes) {
        if (ahead) EACH(t, ROWS) FETCH(rows[t] + k + ahead);
        EACH(h, CHUNK / LANES) {
            VECTOR in[ROWS];
            EACH(t, ROWS) in[t] = *(const VECTOR *)(rows[t] + k + LANES * h);
            EACH(c, classes) {
                VECTOR column = *(const VECTOR *)(w + CHUNK * c + LANES * h);
                IN_REGISTER(column);
                EACH(t, ROWS) sums[t][c] += in[t] * column;
            }
        }
    }
    EACH(t, ROWS)
        if ((size_t)t < n) EACH(c, classes) out[room * t + c] += KERNEL(across)(sums[t][c]);
}

/* out (n, n_classes), with stride room, = scores of features first to first + d of a group with addresses x (n).
   `ahead`: unless 0, prefetch the next slab of these rows, or the first slab of rows so many floats further on. */
TARGET static void KERNEL(group_scores)(const float *const *x, size_t first, const float *w, float *out, size_t room,
                                        size_t n, size_t d, int n_classes, size_t ahead)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    size_t chunks = d / CHUNK, tail = d % CHUNK, all = chunks + (tail > 0);
    for (size_t t = 0; t < n; t++) memset(out + room * t, 0, sizeof(float) * n_classes);
    for (size_t k = 0; k < all; k += SLAB) {
        size_t whole = LEAST(chunks - k, SLAB), next = k + SLAB < all ? CHUNK * SLAB : ahead - CHUNK * k;
        const float *panel = w;
        for (int p = 0, c = 0; p < panels; p++) {
            int classes = CLASSES(p);
            const float *columns = panel + CHUNK * classes * k;
            for (size_t t = 0; t < n; t += ROWS) {
                size_t rows = LEAST(n - t, ROWS);
                float *to = out + room * t + c;
                WITH_CLASSES(classes, KERNEL(dots), x + t, first + CHUNK * k, columns, to, room, rows, whole,
                             ahead && p == 0 ? next : 0)
                if (tail && k + SLAB >= all) {
                    float ends[ROWS][CHUNK] = {{0}};
                    const float *at[ROWS];
                    for (size_t i = 0; i < rows; i++)
                        at[i] = memcpy(ends[i], x[t + i] + first + CHUNK * chunks, sizeof(float) * tail);
                    WITH_CLASSES(classes, KERNEL(dots), at, 0, columns + CHUNK * classes * whole, to, room, rows, 1, 0)
                }
            }
            panel += CHUNK * classes * all;
            c += classes;
        }
    }
}

/* e^x for x <= 0 with an error of at most two roundings, and 0 for x < -87: a power of two times a Taylor series */
TARGET INLINE VECTOR KERNEL(exp)(VECTOR x)
{
    const float round = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const VECTOR zero = {0};
    KERNEL(ints) tiny = x < zero - 87.0f;
    x = KERNEL(either)(tiny, zero, x);
    VECTOR whole = x * 0x1.715476p0f + round;
    KERNEL(bits) power = ((KERNEL(bits))whole - 0x4b400000 + 127) << 23; /* unsigned, as lanes that are not used wrap */
    whole -= round;
    x = x - whole * ln2_high - whole * ln2_low;
    VECTOR sum = x * (1.0f / 5040) + 1.0f / 720;
    sum = sum * x + 1.0f / 120;
    sum = sum * x + 1.0f / 24;
    sum = sum * x + 1.0f / 6;
    sum = sum * x + 0.5f;
    sum = sum * x + 1;
    sum = sum * x + 1;
    return KERNEL(either)(tiny, zero, sum * (VECTOR)power);
}

/* Replace scores r (n, n_classes) of a group by residuals times clip factors, c = min(1, bound / (length |r|)). The
   stride room is at least n_classes rounded up to whole vectors; the padding is overwritten. */
TARGET static void KERNEL(clip)(float *r, size_t room, const int64_t *y, const double *lengths, double bound,
                                double *r_norms, double *factors, size_t n, int n_classes)
{
    int last = (n_classes - 1) / LANES;
    float inverses[GROUP];
    KERNEL(ints) lanes, there;
    EACH(l, LANES) {
        lanes[l] = l;
        there[l] = LANES * last + l < n_classes ? -1 : 0;
    }
    const VECTOR lowest = -INFINITY + (VECTOR){0};
    for (size_t i = 0; i < n; i++) {
        VECTOR *row = (VECTOR *)(r + room * i), most = KERNEL(either)(there, row[last], lowest), sum = {0};
        for (int k = 0; k < last; k++) most = KERNEL(either)(row[k] > most, row[k], most);
        float largest = KERNEL(largest)(most);
        for (int k = 0; k < last; k++) sum += row[k] = KERNEL(exp)(row[k] - largest);
        sum += row[last] = KERNEL(either)(there, KERNEL(exp)(row[last] - largest), (VECTOR){0});
        inverses[i] = 1 / KERNEL(across)(sum);
    }
    for (size_t i = 0; i < n; i++) {
        VECTOR *row = (VECTOR *)(r + room * i), one = 1 + (VECTOR){0};
        doubles squares[LANES / 4] = {{0}};
        for (int k = 0; k <= last; k++) {
            KERNEL(ints) own = lanes == (int)y[i] - LANES * k + (KERNEL(ints)){0};
            VECTOR residuals = row[k] * inverses[i] - KERNEL(either)(own, one, (VECTOR){0});
            row[k] = residuals;
            EACH(q, LANES / 4) {
                doubles part = __builtin_convertvector(((const four *)&residuals)[q], doubles);
                squares[q] += part * part;
            }
        }
        EACH(q, LANES / 4 - 1) squares[0] += squares[q + 1];
        r_norms[i] = sqrt((squares[0][0] + squares[0][1]) + (squares[0][2] + squares[0][3]));
        double length = lengths[i] * r_norms[i];
        factors[i] = length <= bound ? 1 : bound / length;
        for (int k = 0; k <= last; k++) row[k] *= (float)factors[i];
    }
}

/* sum (classes, 2 LANES) += r^T x for features j to j + 2 LANES of x. `first`: this is the first panel, so read them
   from the addresses `rows`, copy them to `copy` and prefetch two vectors from byte `at` of n rows with addresses
   `next`. Other panels read `copy`. */
TARGET INLINE void KERNEL(outer)(const float *const *rows, size_t j, const float *r, size_t r_stride, float *sum, size_t n,
                                 float *copy, const char *const *next, size_t at, const int first, const int classes)
{
    VECTOR sum_a[PANEL], sum_b[PANEL];
    EACH(c, classes) {
        sum_a[c] = *(const VECTOR *)(sum + 2 * LANES * c);
        sum_b[c] = *(const VECTOR *)(sum + 2 * LANES * c + LANES);
    }
    for (size_t i = 0; i < n; i++, r += r_stride, copy += 2 * LANES) {
        const float *x = first ? rows[i] + j : copy;
        VECTOR in_a = *(const VECTOR *)x, in_b = *(const VECTOR *)(x + LANES);
        if (first) {
            EACH(l, (2 * LANES + CHUNK - 1) / CHUNK) FETCH(next[i] + at + LINE * l);
            *(VECTOR *)copy = in_a;
            *(VECTOR *)(copy + LANES) = in_b;
        }
        EACH(c, classes) {
            sum_a[c] += in_a * r[c];
            sum_b[c] += in_b * r[c];
        }
    }
    EACH(c, classes) {
        *(VECTOR *)(sum + 2 * LANES * c) = sum_a[c];
        *(VECTOR *)(sum + 2 * LANES * c + LANES) = sum_b[c];
    }
}

/* sums (tiles, n_classes, 2 LANES) += r^T x of a group with addresses x (n), where a tile is two vectors of features.
   Prefetch n rows from the addresses in `next`, whose elements have size bytes. */
TARGET static void KERNEL(group_sum)(const float *const *x, const float *r, float *sums, size_t n, size_t d, int n_classes,
                                     size_t r_stride, const char *const *next, size_t size)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    float copy[GROUP * 2 * LANES] ALIGNED; /* at some row strides, these features of all rows map to few L1 sets */
    for (size_t j = 0; j < d; j += 2 * LANES) {
        size_t width = LEAST(d - j, 2 * LANES);
        if (width < 2 * LANES) {
            memset(copy, 0, sizeof copy);
            for (size_t t = 0; t < n; t++) memcpy(copy + 2 * LANES * t, x[t] + j, sizeof(float) * width);
        }
        for (int p = 0, c = 0; p < panels; p++) {
            int classes = CLASSES(p);
            if (p == 0 && width == 2 * LANES) {
                WITH_CLASSES(classes, KERNEL(outer), x, j, r, r_stride, sums, n, copy, next, size * j, 1)
            } else {
                WITH_CLASSES(classes, KERNEL(outer), x, j, r + c, r_stride, sums, n, copy, next, 0, 0)
            }
            sums += 2 * LANES * classes;
            c += classes;
        }
    }
}

/* total (classes, 2 LANES), with stride apart, += factor sums (classes, 2 LANES), rounded to the grid of shift */
TARGET static __attribute__((noinline)) void KERNEL(add)(const float *sums, double factor, double *total, size_t apart,
                                                         double shift, int classes)
{
    for (int c = 0; c < classes; c++, sums += 2 * LANES)
        EACH(q, 4)
            ((KERNEL(wide) *)(total + apart * c))[q] +=
                __builtin_convertvector(((const KERNEL(half) *)sums)[q], KERNEL(wide)) * factor + shift - shift;
}

/* total (n_classes, d), with stride apart, += factor sums (tiles, n_classes, 2 LANES), rounded to the grid of shift. Then
   set sums to zero. */
TARGET static void KERNEL(flush)(float *sums, double factor, double *total, size_t d, int n_classes, size_t apart,
                                 double shift)
{
    for (size_t j = 0; j < d; j += 2 * LANES, sums += 2 * LANES * n_classes) {
        KERNEL(add)(sums, factor, total + j, apart, shift, n_classes);
        memset(sums, 0, sizeof(float) * 2 * LANES * n_classes);
    }
}

TARGET static void KERNEL(scores)(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes,
                                  size_t stride)
{
    const float *rows[GROUP];
    for (size_t i = 0; i < n; i += GROUP) {
        size_t count = LEAST(GROUP, n - i);
        for (size_t t = 0; t < count; t++) rows[t] = x + stride * (i + t);
        KERNEL(group_scores)(rows, 0, w, out + n_classes * i, n_classes, count, d, n_classes, stride * GROUP);
    }
}

/* out (n) = x (n), exactly; float16 must be finite. The bits move to their places in a float32, and a factor corrects
   the exponent bias. */
TARGET static void KERNEL(widen)(const uint16_t *x, enum stored stored, float *out, size_t n)
{
    const float scale = stored == FLOAT16 ? 0x1p112f : 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t half = x[i], placed = stored == FLOAT16 ? (half & 0x8000) << 16 | (half & 0x7fff) << 13 : half << 16;
        float number;
        memcpy(&number, &placed, sizeof number);
        out[i] = number * scale;
    }
}

/* out (n) = bits of x (n) rounded to float16, to nearest, ties to even. Adding 1/2, whose unit in the last place is the
   least float16, rounds numbers below the normal range of float16; other numbers round at bit 13. */
TARGET static void KERNEL(halve)(const float *x, uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits, size, small, half;
        memcpy(&bits, x + i, sizeof bits);
        size = bits & 0x7fffffff;
        float number;
        memcpy(&number, &size, sizeof number);
        number += 0.5f;
        memcpy(&small, &number, sizeof small);
        half = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
        uint32_t below = -(uint32_t)(size < 0x38800000), beyond = -(uint32_t)(size >= 0x47800000);
        half = (half & ~below) | ((small - 0x3f000000) & below);
        half = (half & ~beyond) | (0x7c00 & beyond) | (0x7e00 & -(uint32_t)(size > 0x7f800000)); /* infinity, NaN */
        out[i] = (uint16_t)((bits >> 16 & 0x8000) | half);
    }
}

/* out (d) = x (d) widened, minus shift (d) unless null. The product with the exponent bias is exact, so an FMA changes no
   bit. */
TARGET INLINE void KERNEL(row)(const char *x, const float *shift, float *out, size_t d, const enum stored stored)
{
    const float *wide = (const float *)x;
    if (stored == FLOAT32 && !shift)
        memcpy(out, x, sizeof(float) * d);
    else if (stored == FLOAT32)
        for (size_t i = 0; i < d; i++) out[i] = wide[i] - shift[i];
    else {
        const uint16_t *narrow = (const uint16_t *)x;
        KERNEL(widen)(narrow, stored, out, d);
        for (size_t i = 0; shift && i < d; i++) out[i] -= shift[i];
    }
}

/* out (n, WIDTH(from)) = rows first to first + n of from, float32 and translated */
TARGET static void KERNEL(load)(const struct rows *from, size_t first, float *out, size_t n)
{
    for (size_t t = first; t < first + n; t++, out += WIDTH(from)) {
        const char *x = ROW(from, t);
        switch (from->stored) {
        case FLOAT32: KERNEL(row)(x, from->shift, out, from->d, FLOAT32); break;
        case BFLOAT16: KERNEL(row)(x, from->shift, out, from->d, BFLOAT16); break;
        default: KERNEL(row)(x, from->shift, out, from->d, FLOAT16);
        }
        if (from->shift) out[from->d] = from->column;
    }
}

TARGET static void KERNEL(clipped_sum)(const struct rows *from, float *wide, const float *w, const int64_t *y,
                                       const double *lengths, double bound, double *r_norms, double *factors,
                                       double *total, size_t n, const int64_t *summed, size_t n_summed,
                                       const int64_t *ends, int n_classes, size_t apart, double shift,
                                       const struct part *parts, int n_parts)
{
    float r[GROUP * MOST] ALIGNED = {0}, chosen[GROUP * MOST] ALIGNED;
    size_t room = (n_classes + LANES - 1) / LANES * LANES, d = WIDTH(from), count, done = 0;
    int in_place = from->stored == FLOAT32 && !from->shift;
    float *sums = wide + GROUP * d;
    const char *next[GROUP];
    const float *rows[GROUP], *some[GROUP];
    for (size_t i = 0, stop = 0, run = 0; i < n; i += count) {
        if (i == stop) stop = ends && !summed ? (size_t)ends[run++] : LEAST(i + RUN, n);
        size_t groups = (stop - i + GROUP - 1) / GROUP;
        count = (stop - i + groups - 1) / groups;
        for (size_t t = 0; t < count; t++) rows[t] = in_place ? (const float *)ROW(from, i + t) : wide + d * t;
        if (!in_place) KERNEL(load)(from, i, wide, count);
        KERNEL(group_scores)(rows, 0, w, r, room, count, d, n_classes, in_place && summed ? d * GROUP : 0);
        for (int k = 0; k < n_parts; k++) {
            const struct part *p = parts + k;
            KERNEL(group_scores)(rows, p->first, p->w, p->out + p->room * i, p->room, count, p->d, p->n_classes, 0);
        }
        KERNEL(clip)(r, room, y + i, lengths + i, bound, r_norms + i, factors + i, count, n_classes);
        for (size_t t = 0; t < count; t++) next[t] = ROW(from, LEAST(i + count + t, n - 1));
        if (!summed) {
            KERNEL(group_sum)(rows, r, sums, count, d, n_classes, room, next, SIZE(from));
            if (i + count == stop) KERNEL(flush)(sums, 1, total, d, n_classes, apart, shift);
        }
        while (done < n_summed && (size_t)summed[done] < i + count) {
            size_t taken = 0, end = ends[run];
            for (; done < end && (size_t)summed[done] < i + count; done++, taken++) {
                some[taken] = rows[summed[done] - i];
                memcpy(chosen + room * taken, r + room * (summed[done] - i), sizeof(float) * room);
            }
            KERNEL(group_sum)(some, chosen, sums, taken, d, n_classes, room, next, SIZE(from));
            if (done < end) break; /* the rest of this run is in the next rows */
            KERNEL(flush)(sums, 1, total, d, n_classes, apart, shift);
            run++;
        }
    }
}

TARGET static void KERNEL(clip_all)(float *r, size_t room, const int64_t *y, const double *lengths, double bound,
                                    double *r_norms, double *factors, size_t n, int n_classes)
{
    for (size_t i = 0; i < n; i += GROUP)
        KERNEL(clip)(r + room * i, room, y + i, lengths + i, bound, r_norms + i, factors + i, LEAST(GROUP, n - i),
                     n_classes);
}

TARGET static int KERNEL(lanes)(void)
{
    return LANES;
}

#include "noise.h"
#include "people.h"
#include "runs.h"

#undef KERNEL
#undef ROWS
#undef TARGET
#undef VECTOR
#undef LANES
