// Preloaded into a process: the n-th call of a kind fails as the system would let it fail. Of
// allocations those of a least size count, anonymous maps whatever their size, Python's own too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOTHING, MEMORY, THREAD, DISK };

static int armed = NOTHING, fault_errno;
static long calls, failing;
static size_t least;

// Kind of calls to count from now on; the n-th fails with an errno, 0: none. bytes: of the smallest
// allocation that counts.
void fault_arm(int kind, long n, int error, size_t bytes) {
  least = bytes;
  failing = n;
  fault_errno = error;
  calls = 0;
  armed = kind;
}

// How many there were since then.
long fault_calls(void) { return calls; }

static int fails(int kind) {
  return armed == kind && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == failing;
}

#define NEXT(name)                             \
  static __typeof__(name)* next;               \
  if (!next) next = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)
#define FAIL(kind, otherwise) \
  if (fails(kind)) {          \
    errno = fault_errno;      \
    return otherwise;         \
  }

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

void* malloc(size_t n) {
  if (n >= least) FAIL(MEMORY, NULL)
  return __libc_malloc(n);
}

void* calloc(size_t n, size_t each) {
  if (n && each >= least / n) FAIL(MEMORY, NULL)
  return __libc_calloc(n, each);
}

void* realloc(void* old, size_t n) {
  if (n >= least) FAIL(MEMORY, NULL)
  return __libc_realloc(old, n);
}

int posix_memalign(void** out, size_t alignment, size_t n) {
  NEXT(posix_memalign);
  if (n >= least && fails(MEMORY)) return ENOMEM;
  return next(out, alignment, n);
}

void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  NEXT(mmap);
  if (fd < 0) FAIL(MEMORY, MAP_FAILED)
  return next(at, n, protection, flags, fd, offset);
}

void* mmap64(void* at, size_t n, int protection, int flags, int fd, off64_t offset) {
  NEXT(mmap64);
  if (fd < 0) FAIL(MEMORY, MAP_FAILED)
  return next(at, n, protection, flags, fd, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) {
  NEXT(pthread_create);
  if (fails(THREAD)) return fault_errno;
  return next(thread, how, run, with);
}

ssize_t write(int fd, const void* data, size_t n) {
  NEXT(write);
  if (fd > 2) FAIL(DISK, -1)
  return next(fd, data, n);
}

ssize_t pwrite(int fd, const void* data, size_t n, off_t offset) {
  NEXT(pwrite);
  FAIL(DISK, -1)
  return next(fd, data, n, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t n, off64_t offset) {
  NEXT(pwrite64);
  FAIL(DISK, -1)
  return next(fd, data, n, offset);
}

int fsync(int fd) {
  NEXT(fsync);
  FAIL(DISK, -1)
  return next(fd);
}

int ftruncate64(int fd, off64_t n) {
  NEXT(ftruncate64);
  FAIL(DISK, -1)
  return next(fd, n);
}

int posix_fallocate64(int fd, off64_t offset, off64_t n) {
  NEXT(posix_fallocate64);
  if (fails(DISK)) return fault_errno;
  return next(fd, offset, n);
}

int rename(const char* from, const char* to) {
  NEXT(rename);
  FAIL(DISK, -1)
  return next(from, to);
}
