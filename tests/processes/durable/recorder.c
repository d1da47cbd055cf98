/* Preloaded into a server: writes down, in order, what its processes do to the files below one directory.
 *
 * FAIRLEAD_RECORD_BELOW is that directory, FAIRLEAD_RECORD_TO the file of events. An event is a head (kind, length of the
 * path, offset or size, length of the data), the path, the data. `power.py` reads them, and makes of them what a disk
 * may look like after the power was lost. What is written through a memory map is not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct head { uint32_t kind, path; uint64_t at, size; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static uint64_t tickets; /* one for each sync that has begun */
static char below[PATH_MAX];

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("FAIRLEAD_RECORD_BELOW"), *to = getenv("FAIRLEAD_RECORD_TO");
    if (!directory || !to) return;
    snprintf(below, sizeof below, "%s/", directory);
    out = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void note(char kind, const char *path, uint64_t at, const struct iovec *data, int count, uint64_t size) {
    struct head head = {(uint32_t)kind, (uint32_t)strlen(path), at, size};
    struct iovec all[2 + 64];
    uint64_t left = size;
    int used = 2;
    all[0] = (struct iovec){&head, sizeof head};
    all[1] = (struct iovec){(void *)path, head.path};
    for (int i = 0; i < count && left && used < 66; i++) {
        size_t piece = data[i].iov_len < left ? data[i].iov_len : left;
        all[used++] = (struct iovec){data[i].iov_base, piece};
        left -= piece;
    }
    if (left) abort();
    syscall(SYS_writev, out, all, used);
}

/* The path of a descriptor, if it is one of ours. */
static int ours(int fd, char *path) {
    char link[64];
    if (out < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0 || strncmp(path, below, strlen(below) - 1) == 0;
}

/* A path as it was given, made absolute, if it is one of ours. */
static int mine(int at, const char *given, char *path) {
    if (out < 0 || !given) return 0;
    if (given[0] == '/') snprintf(path, PATH_MAX, "%s", given);
    else {
        char base[PATH_MAX], link[64];
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length <= 0) return 0;
        base[length] = 0;
        if ((size_t)snprintf(path, PATH_MAX, "%s/%s", base, given) >= PATH_MAX) return 0;
    }
    return strncmp(path, below, strlen(below)) == 0;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)
#define LOCKED(expression) do { int kept = errno; expression; errno = kept; pthread_mutex_unlock(&lock); } while (0)

static ssize_t wrote(ssize_t n, int fd, const struct iovec *data, int count, off_t at) {
    char path[PATH_MAX];
    LOCKED(if (n > 0 && ours(fd, path)) note('W', path, (uint64_t)at, data, count, (uint64_t)n));
    return n;
}

#define PWRITE(name) ssize_t name(int fd, const void *data, size_t size, off_t at) { \
    REAL(ssize_t, #name, int, const void *, size_t, off_t); \
    struct iovec one = {(void *)data, size}; pthread_mutex_lock(&lock); \
    return wrote(real(fd, data, size, at), fd, &one, 1, at); }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name) ssize_t name(int fd, const struct iovec *data, int count, off_t at) { \
    REAL(ssize_t, #name, int, const struct iovec *, int, off_t); pthread_mutex_lock(&lock); \
    return wrote(real(fd, data, count, at), fd, data, count, at); }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name) ssize_t name(int fd, const struct iovec *data, int count, off_t at, int flags) { \
    REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int); pthread_mutex_lock(&lock); \
    return wrote(real(fd, data, count, at, flags), fd, data, count, at); }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

/* Sockets and pipes go past the lock: a write that blocks must not hold up the others. */
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    char path[PATH_MAX];
    if (!ours(fd, path)) return real(fd, data, size);
    struct iovec one = {(void *)data, size};
    pthread_mutex_lock(&lock);
    ssize_t n = real(fd, data, size);
    return wrote(n, fd, &one, 1, n > 0 ? lseek(fd, 0, SEEK_CUR) - n : 0);
}

ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    char path[PATH_MAX];
    if (!ours(fd, path)) return real(fd, data, count);
    pthread_mutex_lock(&lock);
    ssize_t n = real(fd, data, count);
    return wrote(n, fd, data, count, n > 0 ? lseek(fd, 0, SEEK_CUR) - n : 0);
}

/* What was written before the call is safe after it, and only that: so the event stands where the call began. */
#define SYNC(name) int name(int fd) { \
    REAL(int, #name, int); char path[PATH_MAX]; struct stat facts; \
    int is_ours = ours(fd, path); uint64_t ticket = 0; \
    if (is_ours) { pthread_mutex_lock(&lock); ticket = ++tickets; \
        LOCKED(note('B', path, ticket, NULL, 0, 0)); } \
    int result = real(fd); int kept = errno; \
    if (is_ours && result == 0 && fstat(fd, &facts) == 0) { pthread_mutex_lock(&lock); \
        LOCKED(note(S_ISDIR(facts.st_mode) ? 'D' : 'S', path, ticket, NULL, 0, 0)); } \
    errno = kept; return result; }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(name) int name(int fd, off_t size) { \
    REAL(int, #name, int, off_t); char path[PATH_MAX]; pthread_mutex_lock(&lock); int result = real(fd, size); \
    LOCKED(if (result == 0 && ours(fd, path)) note('T', path, (uint64_t)size, NULL, 0, 0)); return result; }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* Only the plain mode, which makes a file longer with zeros, is used. */
static void extended(int fd, int mode, off_t at, off_t length) {
    char path[PATH_MAX];
    if (!ours(fd, path)) return;
    if (mode & ~1) abort();
    if (mode == 0) note('A', path, (uint64_t)(at + length), NULL, 0, 0);
}

#define FALLOCATE(name) int name(int fd, int mode, off_t at, off_t length) { \
    REAL(int, #name, int, int, off_t, off_t); pthread_mutex_lock(&lock); int result = real(fd, mode, at, length); \
    LOCKED(if (result == 0) extended(fd, mode, at, length)); return result; }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name) int name(int fd, off_t at, off_t length) { \
    REAL(int, #name, int, off_t, off_t); pthread_mutex_lock(&lock); int result = real(fd, at, length); \
    LOCKED(if (result == 0) extended(fd, 0, at, length)); return result; }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

static int opened(int at, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat before;
    if (!(flags & (O_CREAT | O_TRUNC)) || !mine(at, given, path)) return (int)syscall(SYS_openat, at, given, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = fstatat(at, given, &before, 0) != 0;
    int fd = (int)syscall(SYS_openat, at, given, flags, mode);
    LOCKED(if (fd >= 0) { if (is_new) note('C', path, 0, NULL, 0, 0); else if (flags & O_TRUNC) note('T', path, 0, NULL, 0, 0); });
    return fd;
}

#define OPEN(name) int name(const char *given, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    return opened(AT_FDCWD, given, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) int name(int at, const char *given, int flags, ...) { \
    va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; va_end(rest); \
    return opened(at, given, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

static int two_names(char kind, int from_at, const char *from, int to_at, const char *to, int result) {
    char old[PATH_MAX], new[PATH_MAX];
    if (result == 0 && mine(from_at, from, old) && mine(to_at, to, new)) {
        struct iovec one = {new, strlen(new)};
        note(kind, old, 0, &one, 1, one.iov_len);
    }
    return result;
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    pthread_mutex_lock(&lock);
    int result = real(from, to);
    LOCKED(two_names('R', AT_FDCWD, from, AT_FDCWD, to, result));
    return result;
}

int renameat(int from_at, const char *from, int to_at, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    pthread_mutex_lock(&lock);
    int result = real(from_at, from, to_at, to);
    LOCKED(two_names('R', from_at, from, to_at, to, result));
    return result;
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    pthread_mutex_lock(&lock);
    int result = real(from, to);
    LOCKED(two_names('L', AT_FDCWD, from, AT_FDCWD, to, result));
    return result;
}

static int removed(int at, const char *given, int result) {
    char path[PATH_MAX];
    if (result == 0 && mine(at, given, path)) note('U', path, 0, NULL, 0, 0);
    return result;
}

int unlink(const char *given) {
    REAL(int, "unlink", const char *);
    pthread_mutex_lock(&lock);
    int result = real(given);
    LOCKED(removed(AT_FDCWD, given, result));
    return result;
}

int unlinkat(int at, const char *given, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    pthread_mutex_lock(&lock);
    int result = real(at, given, flags);
    LOCKED(if (!(flags & AT_REMOVEDIR)) removed(at, given, result));
    return result;
}
