/* The kernel, one block of threads after another. */

struct Arguments {
    const char *x; const float *w; const long long *y; const double *norms; const unsigned char *joined;
    double *total; float *r_norms, *factors; int n; double most, shift;
};
static Arguments given;
static bool started[THREADS];

static void run_thread(int me) {
    threadIdx.x = me;
    clipped_sum(given.x, given.w, given.y, given.norms, given.joined, given.total, given.r_norms, given.factors, given.n,
                given.most, given.shift);
    ended[me] = true;
    _longjmp(scheduler, 1);
}

static void resume(int me) {
    threadIdx.x = me;
    if (_setjmp(scheduler)) return;
    if (!started[me]) started[me] = true, setcontext(&contexts[me]);
    _longjmp(places[me], 1);
}

extern "C" void launch(const Arguments *arguments, int n_blocks) {
    static std::vector<char> stacks[THREADS];
    given = *arguments, gridDim.x = n_blocks;
    for (blockIdx.x = 0; blockIdx.x < n_blocks; blockIdx.x++) {
        for (int me = 0; me < THREADS; me++) {
            started[me] = ended[me] = false, stacks[me].resize(1 << 16);
            getcontext(&contexts[me]);
            contexts[me].uc_stack.ss_sp = stacks[me].data(), contexts[me].uc_stack.ss_size = stacks[me].size();
            makecontext(&contexts[me], (void (*)())run_thread, 1, me);
        }
        for (int left = THREADS; left;)
            for (int first = 0; first < THREADS; first += 32)
                for (bool runs = true; runs;) {
                    runs = false;
                    for (int me = first; me < first + 32; me++) {
                        if (!ended[me]) resume(me), left -= ended[me];
                        runs |= !ended[me] && !waits[me];
                    }
                }
    }
}
