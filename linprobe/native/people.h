/* Clipped sums over people, whose rows are next to each other. vectors.h includes this once for each vector width.

   A group holds all rows of some people, so that the factor of a person is known while the rows are in cache. The
   squared norm of a person's gradient, sum_j x_j r_j^T, is sum_(j, k) <x_j, x_k> <r_j, r_k>. The inner products of rows
   do not change from step to step, so the caller keeps them.

   The numbers of a person have the same bits whatever the other rows are. Groups and runs depend on the people in the
   sum only, and no run has more than RUN rows. docs/proofs/people.md bounds the rounding. */

/* Number of rows of a person; 0 if the person is not in the sum or has more than PAIRED. */
TARGET INLINE size_t KERNEL(rows_of)(const struct people *people, size_t unit)
{
    size_t n = people->bounds[unit + 1] - people->bounds[unit];
    return n > PAIRED || (people->joined && !people->joined[unit]) ? 0 : n;
}

/* <a, b> of vectors of d features, float64 */
TARGET static __attribute__((noinline)) double KERNEL(inner)(const float *a, const float *b, size_t d)
{
    doubles sums[LANES / 4] = {{0}};
    size_t whole = d / LANES * LANES;
    for (size_t k = 0; k < whole; k += LANES)
        EACH(q, LANES / 4)
            sums[q] += __builtin_convertvector(((const four *)(a + k))[q], doubles) *
                       __builtin_convertvector(((const four *)(b + k))[q], doubles);
    EACH(q, LANES / 4 - 1) sums[0] += sums[q + 1];
    double sum = (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]);
    for (size_t k = whole; k < d; k++) sum += (double)a[k] * b[k];
    return sum;
}

/* out = inner products of the pairs of rows of each person: of row 0 with 1, 2, ..., then of row 1 with 2, ... */
TARGET static void KERNEL(inner_products)(const struct rows *from, float *wide, const struct people *people, double *out)
{
    size_t d = WIDTH(from);
    for (size_t u = 0; u < people->n; u++) {
        size_t n = KERNEL(rows_of)(people, u);
        KERNEL(load)(from, people->bounds[u], wide, n);
        for (size_t j = 0; j < n; j++)
            for (size_t k = j + 1; k < n; k++) *out++ = KERNEL(inner)(wide + d * j, wide + d * k, d);
    }
}

/* Replace scores r (n, n_classes) of the n rows from `first` on, at most GROUP, by residuals times the weights of the
   rows, and write their norms. */
TARGET static void KERNEL(residuals)(float *r, size_t room, const struct people *people, size_t first, double *r_norms,
                                     size_t n, int n_classes)
{
    size_t width = (n_classes + LANES - 1) / LANES * LANES;
    double ones[GROUP];
    KERNEL(clip)(r, room, people->y + first, people->norms + first, INFINITY, r_norms, ones, n, n_classes);
    for (size_t j = 0; people->weights && j < n; j++) {
        float weight = (float)people->weights[first + j];
        for (size_t c = 0; c < width; c++) r[room * j + c] *= weight;
        r_norms[j] *= weight;
    }
}

/* Replace scores r (n, n_classes) of the n rows of person u by residuals times the clip factor. inner: of the person's
   pairs of rows. */
TARGET static void KERNEL(clip_person)(float *r, size_t room, const struct people *people, size_t u, const double *inner,
                                       size_t n, int n_classes)
{
    size_t first = people->bounds[u], width = (n_classes + LANES - 1) / LANES * LANES;
    double r_norms[PAIRED], own = 0, pairs = 0, spread = 0;
    KERNEL(residuals)(r, room, people, first, r_norms, n, n_classes);
    for (size_t j = 0; j < n; j++) {
        double length = people->norms[first + j] * r_norms[j];
        own += length * length;
        spread += length;
    }
    for (size_t j = 0; j < n; j++)
        for (size_t k = j + 1; k < n; k++) pairs += *inner++ * KERNEL(inner)(r + room * j, r + room * k, width);
    double squared = own + 2 * pairs, norm = sqrt(squared < 0 ? 0 : squared), least = spread / people->most;
    double longest = norm < least ? least : norm, factor = longest <= people->bound ? 1 : people->bound / longest;
    people->norms_of[u] = norm;
    people->factors[u] = factor;
    for (size_t j = 0; j < n; j++)
        for (size_t c = 0; c < width; c++) r[room * j + c] *= (float)factor;
}

/* Replace scores r (bounds[n], n_classes) by clipped residuals, for all people with at most PAIRED rows. */
TARGET static void KERNEL(clip_people)(float *r, size_t room, const struct people *people, int n_classes)
{
    const double *inner = people->inner;
    for (size_t u = 0; u < people->n; u++) {
        size_t n = KERNEL(rows_of)(people, u);
        if (n) KERNEL(clip_person)(r + room * people->bounds[u], room, people, u, inner, n, n_classes);
        inner += PAIRS(people, u);
    }
}

/* The rows of the next group: all rows of people from *next on, in one cell. Move *next behind them and *cell to theirs;
   return the number of rows. */
TARGET static size_t KERNEL(next_group)(const struct people *people, size_t *next, size_t *cell, size_t *rows)
{
    size_t count = 0;
    for (; *next < people->n; ++*next) {
        size_t n = KERNEL(rows_of)(people, *next);
        int left = people->ends && *next == (size_t)people->ends[*cell];
        if (count + n > GROUP || (count && left)) break;
        *cell += left;
        for (size_t j = 0; j < n; j++) rows[count++] = people->bounds[*next] + j;
    }
    return count;
}

TARGET static void KERNEL(people)(const struct rows *from, float *wide, const float *w, const struct people *people,
                                  double *total, int n_classes, size_t apart, double shift)
{
    float r[GROUP * MOST] ALIGNED = {0};
    size_t room = (n_classes + LANES - 1) / LANES * LANES, d = WIDTH(from), places[2][GROUP], stop = 0, held = 0;
    size_t cell = 0, current = 0; /* of the group that follows, and of the sum so far */
    int in_place = from->stored == FLOAT32 && !from->shift, now = 0;
    const double *inner = people->inner;
    float *sums = wide + GROUP * d;
    const char *ahead[GROUP];
    const float *rows[GROUP];
    for (size_t u = 0, further, count = KERNEL(next_group)(people, &stop, &cell, places[now]); count; count = further) {
        size_t end = stop, own = cell;
        further = KERNEL(next_group)(people, &stop, &cell, places[!now]);
        for (size_t t = 0; t < count; t++) {
            rows[t] = in_place ? (const float *)ROW(from, places[now][t]) : wide + d * t;
            if (!in_place) KERNEL(load)(from, places[now][t], wide + d * t, 1);
            ahead[t] = ROW(from, further ? places[!now][LEAST(t, further - 1)] : places[now][t]);
        }
        KERNEL(group_scores)(rows, 0, w, r, room, count, d, n_classes, in_place && !total ? d * count : 0);
        for (float *person = r; u < end; u++) {
            size_t n = KERNEL(rows_of)(people, u);
            if (n) KERNEL(clip_person)(person, room, people, u, inner, n, n_classes);
            inner += PAIRS(people, u);
            person += room * n;
        }
        now = !now;
        if (!total) continue;
        if (held && (own != current || held + count > RUN)) {
            KERNEL(flush)(sums, 1, total, d, n_classes, apart, shift);
            held = 0;
        }
        current = own;
        KERNEL(group_sum)(rows, r, sums, count, d, n_classes, room, ahead, SIZE(from));
        held += count;
    }
    if (held) KERNEL(flush)(sums, 1, total, d, n_classes, apart, shift);
}

/* KERNEL(people) for those with more than PAIRED rows. The gradient of each is formed in float32; that matrix gives the
   norm and is added, so its rounding is no matter for the bound. One that leaves float32 is not added. */
TARGET static void KERNEL(formed)(const struct rows *from, float *wide, const float *w, const struct people *people,
                                  double *total, int n_classes, size_t apart, double shift)
{
    size_t room = (n_classes + LANES - 1) / LANES * LANES, d = WIDTH(from);
    size_t n_sums = (d + 2 * LANES - 1) / (2 * LANES) * (2 * LANES) * n_classes;
    int in_place = from->stored == FLOAT32 && !from->shift;
    float *sums = wide + GROUP * d, *r = sums + n_sums;
    double r_norms[GROUP];
    const char *ahead[GROUP];
    const float *rows[GROUP];
    for (size_t u = 0; u < people->n; u++) {
        size_t stop = people->bounds[u + 1], count;
        if (SIZE_OF(people, u) <= PAIRED || (people->joined && !people->joined[u])) continue;
        for (size_t i = people->bounds[u]; i < stop; i += count) {
            count = LEAST(GROUP, stop - i);
            for (size_t t = 0; t < count; t++) {
                rows[t] = in_place ? (const float *)ROW(from, i + t) : wide + d * t;
                ahead[t] = ROW(from, LEAST(i + count + t, (size_t)people->bounds[people->n] - 1));
            }
            if (!in_place) KERNEL(load)(from, i, wide, count);
            KERNEL(group_scores)(rows, 0, w, r, room, count, d, n_classes, 0);
            KERNEL(residuals)(r, room, people, i, r_norms, count, n_classes);
            KERNEL(group_sum)(rows, r, sums, count, d, n_classes, room, ahead, SIZE(from));
        }
        double norm = sqrt(KERNEL(inner)(sums, sums, n_sums));
        int finite = norm < INFINITY;
        people->norms_of[u] = finite ? norm : 0;
        people->factors[u] = !finite ? 0 : norm <= people->bound ? 1 : people->bound / norm;
        if (total && finite)
            KERNEL(flush)(sums, people->factors[u], total, d, n_classes, apart, shift);
        else
            memset(sums, 0, sizeof(float) * n_sums);
    }
}
