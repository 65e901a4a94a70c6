/* Faults at chosen calls of the operating system, for `python -m tests.hostile.faults`.
 *
 * Preloaded, it counts the calls of each kind that concern files below a folder, and lets one of them fail, do half of
 * its work, or kill the process. `arm` chooses the call, or LINPROBE_FAULT for a process that is started later; before
 * that nothing happens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum kind { OPEN, READ, WRITE, SYNC, RENAME, TRUNCATE, LOCK, MAP, KINDS };
enum { KILL = 0, SHORT = -1 }; /* other faults are values of errno */

static char below[PATH_MAX], mark[PATH_MAX];
static int kind_to_fail = -1, fault;
static long place;
static atomic_long seen[KINDS];

/* From now on, call number `number` (from 0) of a kind has the fault; -1 for no kind counts only. */
void arm(const char *folder, int kind, long number, int what) {
    strncpy(below, folder, sizeof below - 1);
    for (int each = 0; each < KINDS; each++) seen[each] = 0;
    kind_to_fail = kind, place = number, fault = what;
}

/* A process that is started with LINPROBE_FAULT is armed from its start; the first to reach the call makes the file `mark`. */
__attribute__((constructor)) static void arm_from_environment(void) {
    char folder[PATH_MAX];
    int kind, what;
    long number;
    const char *text = getenv("LINPROBE_FAULT");
    if (text && sscanf(text, "%d %ld %d %4095s %4095s", &kind, &number, &what, folder, mark) == 5)
        arm(folder, kind, number, what);
}

long calls(int kind) { return seen[kind]; }

static int inside(const char *path) { return below[0] && path && !strncmp(path, below, strlen(below)); }

static int descriptor_inside(int descriptor) {
    char name[64], path[PATH_MAX];
    if (!below[0]) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return inside(path);
}

static int path_inside(const char *path) {
    char folder[PATH_MAX];
    if (!below[0] || !path) return 0;
    return path[0] == '/' ? inside(path) : getcwd(folder, sizeof folder) && inside(folder);
}

/* Whether this call of a kind is the one to fail; it does not return if it is killed. */
static int fails(enum kind kind) {
    long number = seen[kind]++;
    if ((int)kind != kind_to_fail || number != place) return 0;
    if (mark[0] && open(mark, O_WRONLY | O_CREAT | O_EXCL, 0600) < 0) return 0;
    if (fault == KILL) kill(getpid(), SIGKILL);
    if (fault != SHORT) errno = fault;
    return 1;
}

#define NEXT(type, name, ...)                                   \
    static type (*next)(__VA_ARGS__);                           \
    if (!next) next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define OPENS(name)                                                                  \
    int name(const char *path, int flags, ...) {                                     \
        NEXT(int, #name, const char *, int, ...);                                    \
        va_list list;                                                                \
        va_start(list, flags);                                                       \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;    \
        va_end(list);                                                                \
        if (path_inside(path) && fails(OPEN) && fault > 0) return -1;                \
        return next(path, flags, mode);                                              \
    }
#define OPENS_AT(name)                                                               \
    int name(int folder, const char *path, int flags, ...) {                         \
        NEXT(int, #name, int, const char *, int, ...);                               \
        va_list list;                                                                \
        va_start(list, flags);                                                       \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;    \
        va_end(list);                                                                \
        int found = folder == AT_FDCWD ? path_inside(path) : descriptor_inside(folder); \
        if (found && fails(OPEN) && fault > 0) return -1;                            \
        return next(folder, path, flags, mode);                                      \
    }
#define MOVES(name, kind, type)                                                      \
    ssize_t name(int descriptor, type data, size_t length) {                         \
        NEXT(ssize_t, #name, int, type, size_t);                                     \
        if (descriptor_inside(descriptor) && fails(kind)) {                          \
            if (fault > 0) return -1;                                                \
            length -= length / 2;                                                    \
        }                                                                            \
        return next(descriptor, data, length);                                       \
    }
#define MOVES_AT(name, kind, type, offset_type)                                      \
    ssize_t name(int descriptor, type data, size_t length, offset_type offset) {     \
        NEXT(ssize_t, #name, int, type, size_t, offset_type);                        \
        if (descriptor_inside(descriptor) && fails(kind)) {                          \
            if (fault > 0) return -1;                                                \
            length -= length / 2;                                                    \
        }                                                                            \
        return next(descriptor, data, length, offset);                               \
    }
#define ACTS(name, kind)                                                             \
    int name(int descriptor) {                                                       \
        NEXT(int, #name, int);                                                       \
        return descriptor_inside(descriptor) && fails(kind) && fault > 0 ? -1 : next(descriptor); \
    }
#define ACTS_WITH(name, kind, type)                                                  \
    int name(int descriptor, type value) {                                           \
        NEXT(int, #name, int, type);                                                 \
        return descriptor_inside(descriptor) && fails(kind) && fault > 0 ? -1 : next(descriptor, value); \
    }
#define MAPS(name, offset_type)                                                      \
    void *name(void *at, size_t length, int protection, int flags, int descriptor, offset_type offset) { \
        NEXT(void *, #name, void *, size_t, int, int, int, offset_type);             \
        if (descriptor >= 0 && descriptor_inside(descriptor) && fails(MAP) && fault > 0) return MAP_FAILED; \
        return next(at, length, protection, flags, descriptor, offset);              \
    }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
MOVES(read, READ, void *)
MOVES(write, WRITE, const void *)
MOVES_AT(pread, READ, void *, off_t)
MOVES_AT(pread64, READ, void *, off64_t)
MOVES_AT(pwrite, WRITE, const void *, off_t)
MOVES_AT(pwrite64, WRITE, const void *, off64_t)
ACTS(fsync, SYNC)
ACTS(fdatasync, SYNC)
ACTS_WITH(ftruncate, TRUNCATE, off_t)
ACTS_WITH(ftruncate64, TRUNCATE, off64_t)
ACTS_WITH(flock, LOCK, int)
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

static atomic_long looks, step_back;

/* From now on, each look at the clock is `seconds` earlier than the last one; 0 shows the true time. */
void go_back(long seconds) { looks = 0, step_back = seconds; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(int, "clock_gettime", clockid_t, struct timespec *);
    int status = next(clock, now);
    if (clock == CLOCK_REALTIME && step_back) now->tv_sec -= step_back * ++looks;
    return status;
}

int rename(const char *from, const char *to) {
    NEXT(int, "rename", const char *, const char *);
    return path_inside(to) && fails(RENAME) && fault > 0 ? -1 : next(from, to);
}
