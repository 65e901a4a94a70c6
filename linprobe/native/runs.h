/* Products with many classes, a run of rows at a time. vectors.h includes this once for each vector width.

   The rows of a run are packed into tiles: a tile holds TILE features of all rows, one row after another. Scores and
   sums both read the tiles, so that each row is read from memory once.

   Weights are packed as an array (n_classes / CHUNK, d, CHUNK), classes padded with zeros. A score is summed in the order
   of the features, in one lane, so a row has the same scores at every place. */

#define TILE_STEP ((RUN + SPARE) * TILE) /* no power of two: copies of one row in all tiles would map to few cache sets */
#define TOGETHER (LANES < 16 ? 2 : 4)    /* vectors of scores of a row that are summed together, at most */
#define DEPTH 128                        /* features whose weights stay in cache while a run is scored */

/* tiles = rows i to i + n of from. wide: buffer of one row of float32. Tiles are padded with zeros. */
TARGET static void KERNEL(pack)(const struct rows *from, size_t i, size_t n, float *wide, float *tiles)
{
    int in_place = from->stored == FLOAT32 && !from->shift;
    size_t d = WIDTH(from), bytes = SIZE(from) * from->d;
    for (size_t t = 0; t < n; t++, tiles += TILE) {
        const float *row = in_place ? (const float *)ROW(from, i + t) : wide;
        const char *ahead = ROW(from, i + LEAST(t + 2, n - 1));
        float *tile = tiles;
        if (!in_place) {
            for (size_t k = 0; k < bytes; k += LINE) FETCH(ahead + k);
            KERNEL(load)(from, i + t, wide, 1);
        }
        for (size_t j = 0; j < d; j += TILE, tile += TILE_STEP) {
            size_t width = LEAST(d - j, TILE);
            if (in_place) EACH(l, TILE / CHUNK) FETCH(ahead + sizeof(float) * j + LINE * l);
            if (width == TILE)
                EACH(h, TILE / LANES) *(VECTOR *)(tile + LANES * h) = *(const VECTOR *)(row + j + LANES * h);
            else {
                memset(tile, 0, sizeof(float) * TILE);
                memcpy(tile, row + j, sizeof(float) * width);
            }
        }
    }
}

/* out (n, vectors), with stride room, += scores over features first to first + depth of n rows in tiles, which begin at x;
   0 is added to if `fresh`. w: packed weights of the first of these features and classes; the next CHUNK classes are
   `apart` floats further on. n is at most `rows`, so many are read. */
TARGET INLINE void KERNEL(block)(const float *x, size_t first, size_t depth, const float *w, size_t apart, float *out,
                                 size_t room, size_t n, int fresh, const int vectors, const int rows)
{
    VECTOR sums[12][4] = {{{0}}};
    EACH(t, rows)
        if ((size_t)t < n && !fresh) EACH(v, vectors) sums[t][v] = *(const VECTOR *)(out + room * t + LANES * v);
    for (size_t k = first, stop = first + depth, at = 0; k < stop;) {
        const float *in = x + TILE_STEP * (k / TILE) + k % TILE;
        size_t left = LEAST(TILE - k % TILE, stop - k);
        k += left;
        for (; left; left--, in++, at += CHUNK) {
            VECTOR columns[4];
            EACH(v, vectors) {
                columns[v] = *(const VECTOR *)(w + at + apart * (LANES * v / CHUNK) + LANES * v % CHUNK);
                IN_REGISTER(columns[v]);
            }
            EACH(t, rows) {
                VECTOR feature = in[TILE * t] - (VECTOR){0};
                EACH(v, vectors) sums[t][v] += feature * columns[v];
            }
        }
    }
    EACH(t, rows)
        if ((size_t)t < n) EACH(v, vectors) *(VECTOR *)(out + room * t + LANES * v) = sums[t][v];
}

/* out (n, n_classes rounded up to whole lines), with stride room, = scores of features first to first + d of n rows in
   tiles */
TARGET static void KERNEL(tile_scores)(const float *tiles, size_t first, size_t d, const float *w, float *out, size_t room,
                                       size_t n, int n_classes)
{
    int lines = (n_classes + CHUNK - 1) / CHUNK, panels = (lines * CHUNK / LANES + TOGETHER - 1) / TOGETHER, vectors;
    for (int p = 0, c = 0; p < panels; p++, c += LANES * vectors) {
        vectors = LANES < 16 ? TOGETHER : lines / panels + (p < lines % panels);
        size_t rows = LANES < 16 ? 6 : vectors < 3 ? 12 : 24 / vectors, apart = CHUNK * d;
        for (size_t k = 0; k < d; k += DEPTH) {
            const float *columns = w + apart * (c / CHUNK) + CHUNK * k + c % CHUNK;
            size_t depth = LEAST(DEPTH, d - k);
            for (size_t t = 0, some; t < n; t += some) {
                const float *x = tiles + TILE * t;
                float *to = out + room * t + c;
                some = LEAST(rows, n - t);
#if LANES < 16
                KERNEL(block)(x, first + k, depth, columns, apart, to, room, some, !k, TOGETHER, 6);
#else
                switch (vectors) {
                case 1: KERNEL(block)(x, first + k, depth, columns, apart, to, room, some, !k, 1, 12); break;
                case 2: KERNEL(block)(x, first + k, depth, columns, apart, to, room, some, !k, 2, 12); break;
                case 3: KERNEL(block)(x, first + k, depth, columns, apart, to, room, some, !k, 3, 8); break;
                default: KERNEL(block)(x, first + k, depth, columns, apart, to, room, some, !k, 4, 6);
                }
#endif
            }
        }
    }
}

/* total (classes, 2 LANES), with stride apart, += r^T x for x (n, 2 LANES), with stride TILE, summed in registers and
   rounded to the grid of shift */
TARGET INLINE void KERNEL(tile_sum)(const float *x, const float *r, double *total, size_t n, size_t apart, double shift,
                                    const int classes)
{
    VECTOR sum_a[PANEL] = {{0}}, sum_b[PANEL] = {{0}};
    EACH(c, classes) EACH(l, LANES / 4) __builtin_prefetch(total + apart * c + LINE / sizeof *total * l, 1, 3);
    for (size_t i = 0; i < n; i++, x += TILE, r += classes) {
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
    KERNEL(add)(sums, 1, total, apart, shift, classes);
}

/* total += r^T x for the rows of a run in tiles, where row i of them has residuals at r + r_stride * PLACE(places, i).
   panel: buffer of n * n_classes floats. */
TARGET static void KERNEL(run_sum)(const float *tiles, const float *r, const int64_t *places, float *panel, double *total,
                                   size_t n, size_t d, int n_classes, size_t r_stride, size_t apart, double shift)
{
    int panels = (n_classes + PANEL - 1) / PANEL;
    float *to = panel;
    for (int p = 0, c = 0; p < panels; c += CLASSES(p), p++)
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < CLASSES(p); k++) *to++ = r[r_stride * PLACE(places, i) + c + k];
    for (size_t j = 0; j < d; j += 2 * LANES) {
        const float *factors = panel, *tile = tiles + TILE_STEP * (j / TILE) + j % TILE;
        for (int p = 0, c = 0; p < panels; p++) {
            int classes = CLASSES(p);
            WITH_CLASSES(classes, KERNEL(tile_sum), tile, factors, total + apart * c + j, n, apart, shift)
            factors += n * classes;
            c += classes;
        }
    }
}

TARGET static void KERNEL(sum)(const float *x, const float *r, const int64_t *places, const int64_t *ends, double *total,
                               float *room, size_t n, size_t d, int n_classes, size_t r_stride, size_t apart,
                               double shift)
{
    const struct rows from = {x, places, NULL, d, 0, FLOAT32};
    float *panel = room + TILE_STEP * ((d + TILE - 1) / TILE);
    for (size_t i = 0, stop, run = 0; i < n; i = stop, run++) {
        stop = ends ? (size_t)ends[run] : LEAST(i + RUN, n);
        KERNEL(pack)(&from, i, stop - i, NULL, room);
        KERNEL(run_sum)(room, places ? r : r + r_stride * i, places ? places + i : NULL, panel, total, stop - i, d,
                        n_classes, r_stride, apart, shift);
    }
}

/* held, from its row `first` on = the rows of tiles at n places, and their residuals */
TARGET static void KERNEL(hold)(const float *tiles, const float *r, const int64_t *places, size_t i, size_t n, float *held,
                                float *held_r, size_t first, size_t d, size_t r_stride)
{
    for (size_t j = 0; j < d; j += TILE, tiles += TILE_STEP, held += TILE_STEP)
        for (size_t t = 0; t < n; t++)
            memcpy(held + TILE * (first + t), tiles + TILE * (places[t] - i), sizeof(float) * TILE);
    for (size_t t = 0; t < n; t++)
        memcpy(held_r + r_stride * (first + t), r + r_stride * (places[t] - i), sizeof(float) * r_stride);
}

TARGET static void KERNEL(clipped_runs)(const struct rows *from, float *room, const float *w, const int64_t *y,
                                        const double *lengths, double bound, double *r_norms, double *factors,
                                        double *total, size_t n, const int64_t *summed, size_t n_summed,
                                        const int64_t *ends, int n_classes, size_t apart, double shift,
                                        const struct part *parts, int n_parts)
{
    size_t d = WIDTH(from), r_stride = (n_classes + CHUNK - 1) / CHUNK * CHUNK;
    size_t of_tiles = TILE_STEP * ((d + TILE - 1) / TILE), held = 0, done = 0, run = 0;
    float *r = room + of_tiles, *panel = r + RUN * r_stride, *wide = panel + RUN * n_classes;
    float *held_tiles = NULL, *held_r = NULL;
    if (summed) {
        held_tiles = wide + of_tiles / (RUN + SPARE);
        held_r = held_tiles + of_tiles;
    }
    for (size_t i = 0, stop, count; i < n; i = stop) {
        stop = ends && !summed ? (size_t)ends[run++] : LEAST(i + RUN, n);
        count = stop - i;
        KERNEL(pack)(from, i, count, wide, room);
        for (int k = 0; k < n_parts; k++) {
            const struct part *p = parts + k;
            KERNEL(tile_scores)(room, p->first, p->d, p->w, p->out + p->room * i, p->room, count, p->n_classes);
        }
        if (!w) continue;
        KERNEL(tile_scores)(room, 0, d, w, r, r_stride, count, n_classes);
        KERNEL(clip_all)(r, r_stride, y + i, lengths + i, bound, r_norms + i, factors + i, count, n_classes);
        if (total && !summed) KERNEL(run_sum)(room, r, NULL, panel, total, count, d, n_classes, r_stride, apart, shift);
        while (done < n_summed && (size_t)summed[done] < stop) {
            size_t some = 0, left = (size_t)ends[run] - done;
            while (some < left && (size_t)summed[done + some] < stop) some++;
            KERNEL(hold)(room, r, summed + done, i, some, held_tiles, held_r, held, d, r_stride);
            done += some;
            held += some;
            if (some < left) break; /* the rest of this sum is in the next rows */
            KERNEL(run_sum)(held_tiles, held_r, NULL, panel, total, held, d, n_classes, r_stride, apart, shift);
            held = 0;
            run++;
        }
    }
}

#undef TILE_STEP
#undef TOGETHER
#undef DEPTH
