/* Preloaded into a process (LD_PRELOAD), this counts the calls that change files below one folder, and at the n-th kills
 * the process, fails that call, or fails it and all later ones. See faults_at.py. Only the system calls themselves are
 * used, so nothing depends on how the C library finds its own functions. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, RENAME = 4, OTHER = 8 };
enum { COUNT = 0, KILL = 1, TEAR = 2, FAIL = 3, FREEZE = 4 };

static char below[PATH_MAX];
static size_t below_length;
static int how, error, calls;
static long at;
static atomic_long counted;
static atomic_int armed;

void faults_arm(const char *folder, int which, long number, int what, int code) {
    atomic_store(&armed, 0);
    snprintf(below, sizeof below, "%s", folder);
    below_length = strlen(below);
    calls = which, at = number, how = what, error = code;
    atomic_store(&counted, 0);
    atomic_store(&armed, below_length > 0);
}

long faults_counted(void) { return atomic_load(&counted); }

/* For processes that others start: FAULTS_AT="calls:number:what:errno:folder". */
__attribute__((constructor)) static void arm_from_environment(void) {
    const char *text = getenv("FAULTS_AT");
    int which, what, code, end = 0;
    long number;
    if (text && sscanf(text, "%d:%ld:%d:%d:%n", &which, &number, &what, &code, &end) == 4 && end)
        faults_arm(text + end, which, number, what, code);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Whether this call must fail; it does not return if it is the one to be killed at. `torn` stays 1 where half of the data
 * is to be written before that. */
static int must_fail(int kind, const char *path, int *torn) {
    if (!(calls & kind) || strncmp(path, below, below_length) || (path[below_length] && path[below_length] != '/'))
        return 0;
    long number = atomic_fetch_add(&counted, 1) + 1;
    if (how == FREEZE ? number < at : number != at) return 0;
    if (how == TEAR && torn) {
        *torn = 1;
        return 0;
    }
    if (how == KILL || how == TEAR) die();
    if (how == COUNT) return 0;
    errno = error;
    return 1;
}

static int of_path(int kind, int folder, const char *path) {
    char whole[2 * PATH_MAX], link[64];
    if (!atomic_load(&armed)) return 0;
    if (path[0] == '/') return must_fail(kind, path, NULL);
    ssize_t length = 0;
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, PATH_MAX)) return 0;
        length = (ssize_t)strlen(whole);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, whole, PATH_MAX);
        if (length < 0) return 0;
    }
    snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
    return must_fail(kind, whole, NULL);
}

static int of_file(int kind, int file, int *torn) {
    char path[PATH_MAX], link[64];
    if (!atomic_load(&armed)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return must_fail(kind, path, torn);
}

ssize_t write(int file, const void *data, size_t size) {
    int torn = 0;
    if (of_file(WRITE, file, &torn)) return -1;
    if (!torn) return syscall(SYS_write, file, data, size);
    syscall(SYS_write, file, data, size / 2);
    die();
    return -1;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    return of_file(WRITE, file, NULL) ? -1 : syscall(SYS_writev, file, parts, count);
}

int ftruncate(int file, off_t size) { return of_file(WRITE, file, NULL) ? -1 : (int)syscall(SYS_ftruncate, file, size); }
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }

int fsync(int file) { return of_file(SYNC, file, NULL) ? -1 : (int)syscall(SYS_fsync, file); }
int fdatasync(int file) { return of_file(SYNC, file, NULL) ? -1 : (int)syscall(SYS_fdatasync, file); }

int renameat(int from, const char *old, int to, const char *new) {
    return of_path(RENAME, to, new) ? -1 : (int)syscall(SYS_renameat2, from, old, to, new, 0);
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int mkdirat(int folder, const char *path, mode_t mode) {
    return of_path(OTHER, folder, path) ? -1 : (int)syscall(SYS_mkdirat, folder, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int folder, const char *path, int flags) {
    return of_path(OTHER, folder, path) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    int changes = flags & (O_CREAT | O_TRUNC);
    return changes && of_path(OTHER, folder, path) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(last)                                                 \
    mode_t mode = 0;                                               \
    if (flags & (O_CREAT | O_TMPFILE)) {                           \
        va_list rest;                                              \
        va_start(rest, last);                                      \
        mode = va_arg(rest, mode_t);                               \
        va_end(rest);                                              \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(folder, path, flags, mode); }
