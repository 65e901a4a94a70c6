/* The clipped sum of softmax gradients in one read of the rows: scores, residuals, clip factors and products.

   Defined where it is compiled: D, the padded number of features (a multiple of 4), C, the number of classes, THREADS,
   and KIND, the storage type of the rows: 0 float, 1 bfloat16, 2 half.

   A block of threads takes runs of SUM_ROWS rows, ROWS at a time. Each thread holds the weights and the float32 sums of
   KG groups of four features. While the next rows arrive in shared memory, the threads add the clipped gradients of
   the rows before to their sums, and compute the scores of these rows. One warp takes the residual of a row, and the
   LEFT groups beyond those of the threads. Sums of at most SUM_ROWS rows are rounded to the grid of `shift`, so the
   order in which blocks add them changes no bit. The scores of a row depend on no other row. */

#define ROWS 8
#define SUM_ROWS 128
#define STAGES 3
#define GROUPS (D / 4)
#define FEW_LEFT (GROUPS >= THREADS && GROUPS % THREADS <= 2)
#define KG (GROUPS / THREADS + !FEW_LEFT)
#define LEFT (FEW_LEFT ? GROUPS % THREADS : 0)
#define WARPS (THREADS / 32)
#define WARP_ROWS (ROWS / WARPS)
#define CP (C <= 16 ? 16 : 32)
#define TILES (SUM_ROWS / ROWS)
#define SIZE (KIND ? 2 : 4)
#define TILE_BYTES (ROWS * D * SIZE)
#define ALL_LANES 0xffffffffu

#ifndef ON_HOST /* the tests run the kernel on the host, and bring these */
extern __shared__ __align__(128) char tiles[];

/* Begin to copy up to 16 bytes into shared memory; zeros fill the rest. */
__device__ __forceinline__ void begin_copy(char *to, const char *from, int bytes) {
    unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes));
}

/* Wait for the copies of this thread. */
__device__ __forceinline__ void end_copies() {
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
}
#endif

/* Four features as floats. */
__device__ __forceinline__ float4 wide(const char *tile, int group) {
#if KIND == 0
    return reinterpret_cast<const float4 *>(tile)[group];
#else
    uint2 two = reinterpret_cast<const uint2 *>(tile)[group];
    float4 four;
#if KIND == 1
    four = make_float4(__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
                       __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u));
#else
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(four.x), "=f"(four.y) : "r"(two.x));
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(four.z), "=f"(four.w) : "r"(two.y));
#endif
    return four;
#endif
}

/* Sum `part[c]` over the lanes of a warp. A lane is left with the sum of class `at` in part[0]; `valid` is 0 if other
   lanes hold that sum. At each step, a lane keeps one half of its `valid` classes, and sends the other half. */
template <int WIDTH, int M> __device__ __forceinline__ void fold(float *part, int lane, int &at, int &valid) {
    bool up = lane & M;
    if constexpr (WIDTH > 1) {
        constexpr int HALF = (WIDTH + 1) / 2;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            float high = i + HALF < WIDTH ? part[i + HALF] : 0.f;
            float sent = up ? part[i] : high, kept = up ? high : part[i];
            part[i] = kept + __shfl_xor_sync(ALL_LANES, sent, M);
        }
        at += up ? HALF : 0;
        valid = up ? valid - HALF : min(valid, HALF);
        if constexpr (M > 1) fold<HALF, M / 2>(part, lane, at, valid);
    } else {
        part[0] += __shfl_xor_sync(ALL_LANES, part[0], M);
        valid = up ? 0 : valid;
        if constexpr (M > 1) fold<1, M / 2>(part, lane, at, valid);
    }
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int m = 16; m; m >>= 1) value += __shfl_xor_sync(ALL_LANES, value, m);
    return value;
}

/* Round a float32 sum to the grid and add it. */
__device__ __forceinline__ void add_rounded(double *total, float sum, double shift) {
    atomicAdd(total, __dadd_rn(__dadd_rn(sum, shift), -shift));
}

/* x: rows (n, D). w: weights (C, D). y: classes, norms: of the rows, joined: the sample, or null; (n,).
   total: the sum (C, D). r_norms, factors: norms of residuals and clip factors, (n,). most: norm of a
   clipped gradient, a float. */
extern "C" __global__ void __launch_bounds__(THREADS)
clipped_sum(const char *x, const float *w, const long long *y, const double *norms, const unsigned char *joined,
            double *total, float *r_norms, float *factors, int n, double most, double shift) {
    __shared__ float partial[WARPS][ROWS][CP];
    __shared__ __align__(16) float scaled[ROWS][CP];
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    float bound = (float)most, weights[KG][C][4], sum[KG][C][4];
#pragma unroll
    for (int k = 0; k < KG; k++)
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int group = thread + k * THREADS;
                weights[k][c][j] = group < GROUPS ? w[(long long)c * D + 4 * group + j] : 0.f;
                sum[k][c][j] = 0.f;
            }
    float left_weights[4 * LEFT + 1], left_sum[4 * LEFT + 1]; /* of class `lane` */
#pragma unroll
    for (int j = 0; j < 4 * LEFT; j++) {
        left_weights[j] = lane < C ? w[(long long)lane * D + D - 4 * LEFT + j] : 0.f;
        left_sum[j] = 0.f;
    }
    int n_runs = (n + SUM_ROWS - 1) / SUM_ROWS, first_run = blockIdx.x;
    int n_tiles = first_run < n_runs ? ((n_runs - 1 - first_run) / (int)gridDim.x + 1) * TILES : 0;
    auto first_row = [&](int t) { return (first_run + t / TILES * (int)gridDim.x) * SUM_ROWS + t % TILES * ROWS; };
    auto load = [&](int t) {
        if (t < n_tiles) {
            long long row = first_row(t), left = (n - row) * D * SIZE;
            const char *from = x + row * D * SIZE;
            char *to = tiles + t % STAGES * TILE_BYTES;
            for (int at = 16 * thread; at < TILE_BYTES; at += 16 * THREADS) {
                long long here = left - at;
                int bytes = here >= 16 ? 16 : here > 0 ? (int)here : 0; /* zeros follow the last row */
                begin_copy(to + at, bytes ? from + at : x, bytes);
            }
        }
    };
    load(0);
    for (int t = 0; t <= n_tiles; t++) {
        end_copies();
        __syncthreads();
        load(t + 1);
        const char *tile = tiles + t % STAGES * TILE_BYTES, *before = tiles + (t + STAGES - 1) % STAGES * TILE_BYTES;
        int own[WARP_ROWS];
        float length[WARP_ROWS];
        bool here[WARP_ROWS], adds[WARP_ROWS];
#pragma unroll
        for (int i = 0; i < WARP_ROWS; i++) {
            int place = first_row(t) + warp + i * WARPS;
            here[i] = t < n_tiles && place < n;
            own[i] = here[i] ? (int)y[place] : -1;
            length[i] = here[i] ? (float)norms[place] : 0.f;
            adds[i] = here[i] && (joined == nullptr || joined[place]);
        }
        if (t > 0) {
#pragma unroll 2
            for (int row = 0; row < ROWS; row++) {
                float r[CP];
#pragma unroll
                for (int c = 0; c < C; c += 4) {
                    float4 four = *reinterpret_cast<const float4 *>(&scaled[row][c]);
                    r[c] = four.x, r[c + 1] = four.y, r[c + 2] = four.z, r[c + 3] = four.w;
                }
#pragma unroll
                for (int k = 0; k < KG; k++) {
                    int group = thread + k * THREADS;
                    if (group < GROUPS) {
                        float4 v = wide(before, row * GROUPS + group);
#pragma unroll
                        for (int c = 0; c < C; c++) {
                            sum[k][c][0] = fmaf(r[c], v.x, sum[k][c][0]);
                            sum[k][c][1] = fmaf(r[c], v.y, sum[k][c][1]);
                            sum[k][c][2] = fmaf(r[c], v.z, sum[k][c][2]);
                            sum[k][c][3] = fmaf(r[c], v.w, sum[k][c][3]);
                        }
                    }
                }
            }
            if (t % TILES == 0) {
#pragma unroll
                for (int k = 0; k < KG; k++) {
                    int group = thread + k * THREADS;
                    if (group < GROUPS)
#pragma unroll
                        for (int c = 0; c < C; c++)
#pragma unroll
                            for (int j = 0; j < 4; j++) {
                                add_rounded(total + (long long)c * D + 4 * group + j, sum[k][c][j], shift);
                                sum[k][c][j] = 0.f;
                            }
                }
#pragma unroll
                for (int j = 0; j < 4 * LEFT; j++) {
                    if (lane < C) add_rounded(total + (long long)lane * D + D - 4 * LEFT + j, left_sum[j], shift);
                    left_sum[j] = 0.f;
                }
            }
        }
        if (t == n_tiles) return;
#pragma unroll 2
        for (int row = 0; row < ROWS; row++) {
            float part[C];
#pragma unroll
            for (int c = 0; c < C; c++) part[c] = 0.f;
#pragma unroll
            for (int k = 0; k < KG; k++) {
                int group = thread + k * THREADS;
                if (group < GROUPS) {
                    float4 v = wide(tile, row * GROUPS + group);
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        part[c] = fmaf(weights[k][c][0], v.x, part[c]);
                        part[c] = fmaf(weights[k][c][1], v.y, part[c]);
                        part[c] = fmaf(weights[k][c][2], v.z, part[c]);
                        part[c] = fmaf(weights[k][c][3], v.w, part[c]);
                    }
                }
            }
            int at = 0, valid = C;
            fold<C, 16>(part, lane, at, valid);
            if (valid > 0) partial[warp][row][at] = part[0];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WARP_ROWS; i++) {
            int row = warp + i * WARPS, place = first_row(t) + row;
            float4 left[LEFT + 1];
#pragma unroll
            for (int k = 0; k < LEFT; k++) left[k] = wide(tile, row * GROUPS + GROUPS - LEFT + k);
            const float *features = reinterpret_cast<const float *>(left);
            float s = 0.f;
#pragma unroll
            for (int other = 0; other < WARPS; other++) s += lane < C ? partial[other][row][lane] : 0.f;
#pragma unroll
            for (int j = 0; j < 4 * LEFT; j++) s = fmaf(left_weights[j], features[j], s);
            float top = lane < C ? s : __int_as_float(0xff800000);
#pragma unroll
            for (int m = 16; m; m >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, m));
            float e = lane < C ? expf(s - top) : 0.f;
            float r = e / warp_sum(e) - (lane == own[i] ? 1.f : 0.f);
            float r_norm = sqrtf(warp_sum(r * r));
            float factor = fminf(1.f, bound / (length[i] * r_norm));
            if (here[i] && lane == 0) r_norms[place] = r_norm, factors[place] = factor;
            r = adds[i] ? r * factor : 0.f;
            if (lane < CP) scaled[row][lane] = r;
#pragma unroll
            for (int j = 0; j < 4 * LEFT; j++) left_sum[j] = fmaf(r, features[j], left_sum[j]);
        }
    }
}
