/* The kernels of _products.c with vectors of LANES floats; included once for each width. */

#if !defined(TARGET)
#define TARGET
#endif
#define TILE_STEP ((RUN + 1) * 2 * LANES) /* floats from a packed tile to the next */

/* adds to the scores of rows a and b those of some chunks, fetching from next_a and next_b meanwhile if there are any */
TARGET INLINE void KERNEL(dots)(const float *a, const float *b, const float *w, float *out_a, float *out_b,
                                size_t chunks, const float *next_a, const float *next_b, const int classes)
{
    VECTOR sum_a[PANEL] = {{0}}, sum_b[PANEL] = {{0}};
    for (size_t k = 0; k < chunks; k++, a += CHUNK, b += CHUNK, w += CHUNK * classes) {
        if (next_a) {
            FETCH(next_a + CHUNK * k);
            FETCH(next_b + CHUNK * k);
        }
        EACH(h, CHUNK / LANES) {
            VECTOR in_a = *(const VECTOR *)(a + LANES * h), in_b = *(const VECTOR *)(b + LANES * h);
            EACH(c, classes) {
                VECTOR column = *(const VECTOR *)(w + CHUNK * c + LANES * h);
                IN_REGISTER(column);
                sum_a[c] += in_a * column;
                sum_b[c] += in_b * column;
            }
        }
    }
    EACH(c, classes) {
        four across_a = ((const four *)(sum_a + c))[0], across_b = ((const four *)(sum_b + c))[0];
        EACH(q, LANES / 4 - 1) {
            across_a += ((const four *)(sum_a + c))[q + 1];
            across_b += ((const four *)(sum_b + c))[q + 1];
        }
        out_a[c] += (across_a[0] + across_a[2]) + (across_a[1] + across_a[3]);
        if (out_b != out_a) out_b[c] += (across_b[0] + across_b[2]) + (across_b[1] + across_b[3]);
    }
}

/* scores out (n, n_classes) of a group; `ahead` fetches the next slab of its rows, or the first of the next group's */
TARGET static void KERNEL(group_scores)(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes,
                                        size_t stride, const int ahead)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    size_t chunks = d / CHUNK, tail = d % CHUNK, all = chunks + (tail > 0);
    memset(out, 0, sizeof(float) * n * n_classes);
    for (size_t k = 0; k < all; k += SLAB) {
        size_t whole = LEAST(chunks - k, SLAB);
        const float *panel = w;
        for (int p = 0, c = 0; p < panels; p++) {
            int classes = CLASSES(p);
            const float *columns = panel + CHUNK * classes * k;
            for (size_t t = 0; t < n; t += 2) {
                size_t u = LEAST(t + 1, n - 1);
                const float *a = x + stride * t + CHUNK * k, *b = x + stride * u + CHUNK * k;
                const float *next_a = NULL, *next_b = NULL;
                float *out_a = out + n_classes * t + c, *out_b = out + n_classes * u + c;
                if (ahead) {
                    const float *next = k + SLAB < all ? a + CHUNK * SLAB : x + stride * (t + GROUP);
                    next_a = p == 0 ? next : next + stride;
                    next_b = panels > 1 ? next_a : next + stride;
                }
                WITH_CLASSES(classes, KERNEL(dots), a, b, columns, out_a, out_b, whole, next_a, next_b)
                if (tail && k + SLAB >= all) {
                    float ends[2][CHUNK] = {{0}};
                    memcpy(ends[0], a + CHUNK * whole, sizeof(float) * tail);
                    memcpy(ends[1], b + CHUNK * whole, sizeof(float) * tail);
                    WITH_CLASSES(classes, KERNEL(dots), ends[0], ends[1], columns + CHUNK * classes * whole, out_a,
                                 out_b, 1, NULL, NULL)
                }
            }
            panel += CHUNK * classes * all;
            c += classes;
        }
    }
}

/* e^x for x at most 0, to a rounding or two, and 0 below e^-87: a power of two times a Taylor series */
TARGET INLINE VECTOR KERNEL(exp)(VECTOR x)
{
    typedef int32_t ints __attribute__((vector_size(4 * LANES), may_alias));
    const float round = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    ints tiny = x < -87.0f;
    x = (VECTOR)(~tiny & (ints)x);
    VECTOR whole = x * 0x1.715476p0f + round;
    ints power = ((ints)whole - 0x4b400000 + 127) << 23;
    whole -= round;
    x = x - whole * ln2_high - whole * ln2_low;
    VECTOR sum = x * (1.0f / 5040) + 1.0f / 720;
    sum = sum * x + 1.0f / 120;
    sum = sum * x + 1.0f / 24;
    sum = sum * x + 1.0f / 6;
    sum = sum * x + 0.5f;
    sum = sum * x + 1;
    sum = sum * x + 1;
    return (VECTOR)(~tiny & (ints)(sum * (VECTOR)power));
}

/* scores r (n, n_classes) of a group to residuals times clip factors, c = min(1, bound / (length |r|)) */
TARGET static void KERNEL(clip)(float *r, const int64_t *y, const double *lengths, double bound, double *r_norms,
                                double *factors, size_t n, int n_classes)
{
    float *row = r;
    for (size_t i = 0; i < n; i++, row += n_classes) {
        float largest = row[0];
        for (int c = 1; c < n_classes; c++) largest = row[c] > largest ? row[c] : largest;
        for (int c = 0; c < n_classes; c++) row[c] -= largest;
    }
    size_t all = n * n_classes, whole = all - all % LANES;
    for (size_t k = 0; k < whole; k += LANES) *(VECTOR *)(r + k) = KERNEL(exp)(*(const VECTOR *)(r + k));
    VECTOR end = {0};
    memcpy(&end, r + whole, sizeof(float) * (all - whole));
    end = KERNEL(exp)(end);
    memcpy(r + whole, &end, sizeof(float) * (all - whole));
    for (size_t i = 0; i < n; i++, r += n_classes) {
        float sum = 0;
        double squares = 0;
        for (int c = 0; c < n_classes; c++) sum += r[c];
        float inverse = 1 / sum;
        for (int c = 0; c < n_classes; c++) r[c] *= inverse;
        r[y[i]] -= 1;
        for (int c = 0; c < n_classes; c++) squares += (double)r[c] * r[c];
        r_norms[i] = sqrt(squares);
        double length = lengths[i] * r_norms[i];
        factors[i] = length <= bound ? 1 : bound / length;
        for (int c = 0; c < n_classes; c++) r[c] *= (float)factors[i];
    }
}

/* sum (classes, 2 LANES) += r^T x; `first` to see these features keeps a copy of them, and fetches `step` bytes a row
   from next */
TARGET INLINE void KERNEL(outer)(const float *x, size_t stride, const float *r, size_t r_stride, float *sum, size_t n,
                                 float *copy, const char *next, size_t step, const int first, const int classes)
{
    VECTOR sum_a[PANEL], sum_b[PANEL];
    EACH(c, classes) {
        sum_a[c] = *(const VECTOR *)(sum + 2 * LANES * c);
        sum_b[c] = *(const VECTOR *)(sum + 2 * LANES * c + LANES);
    }
    for (size_t i = 0; i < n; i++, x += stride, r += r_stride) {
        VECTOR in_a = *(const VECTOR *)x, in_b = *(const VECTOR *)(x + LANES);
        if (first) {
            EACH(l, (2 * LANES + CHUNK - 1) / CHUNK) FETCH(next + LINE * l);
            next += step;
            *(VECTOR *)copy = in_a;
            *(VECTOR *)(copy + LANES) = in_b;
            copy += 2 * LANES;
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

/* sums += r^T x of a group, in tiles of two vectors: (tiles, n_classes, 2 LANES); fetches the next group, whose numbers
   have `size` bytes */
TARGET static void KERNEL(group_sum)(const float *x, const float *r, float *sums, size_t n, size_t d, int n_classes,
                                     size_t r_stride, const char *next, size_t size)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    float copy[GROUP * 2 * LANES] ALIGNED; /* rows may lie so far apart that few of them find room in first-level cache */
    for (size_t j = 0; j < d; j += 2 * LANES) {
        size_t width = LEAST(d - j, 2 * LANES);
        if (width < 2 * LANES) {
            memset(copy, 0, sizeof copy);
            for (size_t t = 0; t < n; t++) memcpy(copy + 2 * LANES * t, x + d * t + j, sizeof(float) * width);
        }
        for (int p = 0, c = 0; p < panels; p++) {
            int classes = CLASSES(p);
            if (p == 0 && width == 2 * LANES) {
                WITH_CLASSES(classes, KERNEL(outer), x + j, d, r, r_stride, sums, n, copy, next + size * j * n,
                             size * 2 * LANES, 1)
            } else {
                WITH_CLASSES(classes, KERNEL(outer), copy, 2 * LANES, r + c, r_stride, sums, n, copy, next, 0, 0)
            }
            sums += 2 * LANES * classes;
            c += classes;
        }
    }
}

/* total (classes, 2 LANES), its rows `apart` doubles apart, += sums (classes, 2 LANES), rounded by shift */
TARGET static __attribute__((noinline)) void KERNEL(add)(const float *sums, double *total, size_t apart, double shift,
                                                         int classes)
{
    for (int c = 0; c < classes; c++, sums += 2 * LANES, total += apart)
        EACH(q, LANES / 2)
            ((doubles *)total)[q] += __builtin_convertvector(((const four *)sums)[q], doubles) + shift - shift;
}

/* total (n_classes, d), its rows `apart` doubles apart, += sums (tiles, n_classes, 2 LANES), rounded by shift, which
   become zeros */
TARGET static void KERNEL(flush)(float *sums, double *total, size_t d, int n_classes, size_t apart, double shift)
{
    for (size_t j = 0; j < d; j += 2 * LANES, sums += 2 * LANES * n_classes) {
        KERNEL(add)(sums, total + j, apart, shift, n_classes);
        memset(sums, 0, sizeof(float) * 2 * LANES * n_classes);
    }
}

TARGET static void KERNEL(scores)(const float *x, const float *w, float *out, size_t n, size_t d, int n_classes,
                                  size_t stride)
{
    for (size_t i = 0; i < n; i += GROUP)
        KERNEL(group_scores)(x + stride * i, w, out + n_classes * i, LEAST(GROUP, n - i), d, n_classes, stride, 1);
}

/* total (classes, 2 LANES), its rows `apart` doubles apart, += r^T x for x (n, 2 LANES), summed in registers and rounded
   by shift */
TARGET INLINE void KERNEL(tile_sum)(const float *x, const float *r, double *total, size_t n, size_t apart, double shift,
                                    const int classes)
{
    VECTOR sum_a[PANEL] = {{0}}, sum_b[PANEL] = {{0}};
    EACH(c, classes) EACH(l, LANES / 4) __builtin_prefetch(total + apart * c + LINE / sizeof *total * l, 1, 3);
    for (size_t i = 0; i < n; i++, x += 2 * LANES, r += classes) {
        VECTOR in_a = *(const VECTOR *)x, in_b = *(const VECTOR *)(x + LANES);
        EACH(c, classes) {
            sum_a[c] += in_a * r[c];
            sum_b[c] += in_b * r[c];
            IN_REGISTER(sum_a[c]);
            IN_REGISTER(sum_b[c]);
        }
    }
    float sums[PANEL * 2 * LANES] ALIGNED;
    EACH(c, classes) {
        *(VECTOR *)(sums + 2 * LANES * c) = sum_a[c];
        *(VECTOR *)(sums + 2 * LANES * c + LANES) = sum_b[c];
    }
    KERNEL(add)(sums, total, apart, shift, classes);
}

/* copies x (n, d) and r, of those rows, to room: tiles of x, (tiles, n, 2 LANES), ending in zeros, an odd number of
   lines apart, as all rows of a tile may lie where the cache has room for few; then panels of r, whose address it gives */
TARGET static float *KERNEL(packed)(const float *x, const float *r, const size_t *rows, float *room, size_t n, size_t d,
                                    int n_classes, size_t r_stride)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    size_t tiles = (d + 2 * LANES - 1) / (2 * LANES);
    float *panel = room + TILE_STEP * tiles, *to = panel;
    for (size_t i = 0; i < n; i++) {
        const float *row = x + d * rows[i];
        float *tile = room + 2 * LANES * i;
        for (size_t j = 0; j < d; j += 2 * LANES, tile += TILE_STEP) {
            size_t width = LEAST(d - j, 2 * LANES);
            if (width < 2 * LANES) {
                memset(tile, 0, sizeof(float) * 2 * LANES);
                memcpy(tile, row + j, sizeof(float) * width);
            } else
                EACH(h, 2) *(VECTOR *)(tile + LANES * h) = *(const VECTOR *)(row + j + LANES * h);
        }
    }
    for (int p = 0, c = 0; p < panels; c += CLASSES(p), p++)
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < CLASSES(p); k++) *to++ = r[r_stride * rows[i] + c + k];
    return panel;
}

TARGET static void KERNEL(sum)(const float *x, const float *r, const uint8_t *joined, double *total, float *room,
                               size_t n, size_t d, int n_classes, size_t r_stride, size_t apart, double shift)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    for (size_t i = 0; i < n; i += RUN) {
        size_t rows[RUN], count = 0;
        for (size_t t = i; t < LEAST(i + RUN, n); t++)
            if (!joined || joined[t]) rows[count++] = t;
        const float *panel = KERNEL(packed)(x, r, rows, room, count, d, n_classes, r_stride), *tile = room;
        for (size_t j = 0; j < d; j += 2 * LANES, tile += TILE_STEP) {
            const float *factors = panel;
            for (int p = 0, c = 0; p < panels; p++) {
                int classes = CLASSES(p);
                WITH_CLASSES(classes, KERNEL(tile_sum), tile, factors, total + apart * c + j, count, apart, shift)
                factors += count * classes;
                c += classes;
            }
        }
    }
}

/* out (n) = x (n), finite if float16, exactly: its bits go to their places in a float, whose exponent counts from
   elsewhere */
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

TARGET static void KERNEL(clipped_sum)(const char *x, enum stored stored, float *wide, const float *w,
                                       const int64_t *y, const double *lengths, double bound, double *r_norms,
                                       double *factors, double *total, float *sums, size_t n, size_t d, int n_classes,
                                       size_t apart, double shift, const struct part *parts, int n_parts)
{
    size_t size = stored == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    float r[GROUP * MOST] ALIGNED = {0};
    for (size_t i = 0; i < n; i += GROUP, x += size * d * GROUP) {
        size_t count = LEAST(GROUP, n - i);
        const float *rows = stored == FLOAT32 ? (const float *)x : wide;
        if (rows == wide) KERNEL(widen)((const uint16_t *)x, stored, wide, count * d);
        KERNEL(group_scores)(rows, w, r, count, d, n_classes, d, 0);
        for (const struct part *p = parts; p < parts + n_parts; p++)
            KERNEL(group_scores)(rows + p->first, p->w, p->out + p->n_classes * i, count, p->d, p->n_classes, d, 0);
        KERNEL(clip)(r, y + i, lengths + i, bound, r_norms + i, factors + i, count, n_classes);
        KERNEL(group_sum)(rows, r, sums, count, d, n_classes, n_classes, x + size * d * GROUP, size);
        if ((i + GROUP) % RUN == 0 || i + GROUP >= n) KERNEL(flush)(sums, total, d, n_classes, apart, shift);
    }
}

TARGET static void KERNEL(clip_all)(float *r, const int64_t *y, const double *lengths, double bound, double *r_norms,
                                    double *factors, size_t n, int n_classes)
{
    for (size_t i = 0; i < n; i += GROUP)
        KERNEL(clip)(r + n_classes * i, y + i, lengths + i, bound, r_norms + i, factors + i, LEAST(GROUP, n - i),
                     n_classes);
}

#undef KERNEL
#undef TILE_STEP
#undef TARGET
#undef VECTOR
#undef LANES
