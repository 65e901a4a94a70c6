/* The first look of the noise: numbers on the release grid, where float64 decides. vectors.h includes this once for each
   vector width. docs/proofs/gaussian.md bounds the errors. */

/* u (n) = (m + 1/2) 2^-64 for the leading 63 bits m of words (n) */
TARGET INLINE void KERNEL(uniform)(const uint64_t *words, double *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* the halves of m as numbers, by their places in a float64: faster than a conversion before AVX-512 */
        union {
            uint64_t bits;
            double number;
        } high = {words[i] >> 33 | 0x4530000000000000}, low = {(words[i] >> 1 & 0xffffffff) | 0x4330000000000000};
        u[i] = (high.number - (0x1p84 + 0x1p52) + low.number + 0.5) * 0x1p-64;
    }
}

/* z (n) = Phi^-1(u) for u (n) in (2^-21, 1/2], with an error of about one unit in the last place: Wichura 1988, algorithm
   AS 241, PPND16. Smaller u give any number. tail: buffer of n places. */
TARGET INLINE void KERNEL(quantile)(const double *u, double *z, uint32_t *tail, size_t n)
{
    size_t tails = 0;
    for (size_t i = 0; i < n; i++) {
        double q = u[i] - 0.5, r = 0.180625 - q * q;
        double above = 2.5090809287301226727e3, below = 5.2264952788528545610e3;
        above = above * r + 3.3430575583588128105e4, below = below * r + 2.8729085735721942674e4;
        above = above * r + 6.7265770927008700853e4, below = below * r + 3.9307895800092710610e4;
        above = above * r + 4.5921953931549871457e4, below = below * r + 2.1213794301586595867e4;
        above = above * r + 1.3731693765509461125e4, below = below * r + 5.3941960214247511077e3;
        above = above * r + 1.9715909503065514427e3, below = below * r + 6.8718700749205790830e2;
        above = above * r + 1.3314166789178437745e2, below = below * r + 4.2313330701600911252e1;
        above = above * r + 3.3871328727963666080e0, below = below * r + 1;
        z[i] = q * above / below;
    }
    for (size_t i = 0; i < n; i++) {
        tail[tails] = (uint32_t)i;
        tails += u[i] < 0.075;
    }
    for (size_t k = 0; k < tails; k++) {
        double r = sqrt(-log(u[tail[k]])) - 1.6;
        double above = 7.74545014278341407640e-4, below = 1.05075007164441684324e-9;
        above = above * r + 2.27238449892691845833e-2, below = below * r + 5.47593808499534494600e-4;
        above = above * r + 2.41780725177450611770e-1, below = below * r + 1.51986665636164571966e-2;
        above = above * r + 1.27045825245236838258e0, below = below * r + 1.48103976427480074590e-1;
        above = above * r + 3.64784832476320460504e0, below = below * r + 6.89767334985100004550e-1;
        above = above * r + 5.76949722146069140550e0, below = below * r + 1.67638483018380384940e0;
        above = above * r + 4.63033784615654529590e0, below = below * r + 2.05319162663775882187e0;
        above = above * r + 1.42343711074968357734e0, below = below * r + 1;
        z[tail[k]] = -above / below;
    }
}

/* out (n) = the multiples of grid nearest to value (n) + scale grid Z (n), for the normal variates of words (n). Returns
   how many are uncertain: those less than `unsure` steps from a boundary, or with a magnitude below `deep`. Their places
   are in doubtful, a buffer of n. grid is a power of two. */
TARGET static size_t KERNEL(first_look)(const uint64_t *words, const double *value, double *out, uint32_t *doubtful,
                                        size_t n, double scale, double grid, double unsure, uint64_t deep)
{
    enum { PART = 256 };
    const double round = 0x1.8p52, margin = 0.5 - unsure;
    double u[PART], z[PART], apart[PART];
    uint32_t tail[PART];
    size_t found = 0;
    for (size_t start = 0; start < n; start += PART) {
        size_t count = LEAST(n - start, PART);
        KERNEL(uniform)(words + start, u, count);
        KERNEL(quantile)(u, z, tail, count);
        for (size_t i = 0; i < count; i++) {
            double steps = value[start + i] / grid, whole = rint(steps);
            steps = (steps - whole) + (words[start + i] & 1 ? -z[i] : z[i]) * scale;
            double cells = steps + round - round;
            apart[i] = fabs(steps - cells);
            out[start + i] = (whole + cells) * grid;
        }
        for (size_t i = 0; i < count; i++) {
            doubtful[found] = (uint32_t)(start + i);
            found += (apart[i] > margin) | (words[start + i] >> 1 < deep);
        }
    }
    return found;
}
