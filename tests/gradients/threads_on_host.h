/* What the GPU's kernel needs to run on the host: a warp runs as far as it can before the next one does. */

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define ON_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::min;
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Place { int x; };

static Place blockIdx, gridDim, threadIdx;
static char tiles[1 << 18] __align__(128);

static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline float __int_as_float(int bits) { return __uint_as_float(bits); }
static inline double __dadd_rn(double a, double b) { volatile double sum = a + b; return sum; }
static inline void atomicAdd(double *total, double value) { *total += value; }
static inline void begin_copy(char *to, const char *from, int bytes) { memset(to, 0, 16); memcpy(to, from, bytes); }
static inline void end_copies() {}

static ucontext_t contexts[THREADS];  // where threads start; jumps, which call no system, go between them
static jmp_buf scheduler, places[THREADS];
static bool ended[THREADS], waits[THREADS];
struct Barrier { int arrived, passed; };
static Barrier block_barrier, warp_barriers[THREADS / 32];
static float lanes[THREADS];

static void wait_at(Barrier &barrier, int threads) {
    int passed = barrier.passed, me = threadIdx.x;
    if (++barrier.arrived == threads) barrier.arrived = 0, barrier.passed++;
    while (barrier.passed == passed)
        if (!_setjmp(places[me])) _longjmp(scheduler, 1);
    threadIdx.x = me;
}

static void __syncthreads() {
    int me = threadIdx.x;
    waits[me] = true;
    wait_at(block_barrier, THREADS);
    waits[me] = false;
}

static float __shfl_xor_sync(unsigned, float value, int other) {
    int me = threadIdx.x;
    lanes[me] = value;
    wait_at(warp_barriers[me / 32], 32);
    float found = lanes[me ^ other];
    wait_at(warp_barriers[me / 32], 32);
    return found;
}
