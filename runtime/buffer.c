/* buffer.c - see buffer.h. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* memfd_create, seals */
#endif
#include "runtime/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

pe_status pe_buffer_alloc(uint64_t size, pe_buffer **out, pe_error *err) {
  pe_buffer *b = size < SIZE_MAX / 2 ? pe_alloc(sizeof *b) : NULL;
  if (!b) return pe_nomem(err, "buffer");
  if (!(b->data = pe_alloc_aligned(size, 64))) {
    pe_free(b);
    return pe_fail(err, PE_ENOMEM, "out of memory: buffer of %llu bytes", (unsigned long long)size);
  }
  memset(b->data, 0, size);
  *b = (pe_buffer){.data = b->data, .size = size, .refs = 1};
  *out = b;
  return PE_OK;
}

pe_status pe_buffer_reserve(uint64_t size, pe_buffer **out, pe_error *err) {
  pe_buffer *b = pe_calloc(1, sizeof *b);
  if (!b) return pe_nomem(err, "buffer");
  int flags = MAP_PRIVATE | MAP_ANON;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void *p = size < SIZE_MAX / 2 ? mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, flags, -1, 0)
                                : MAP_FAILED;
  if (p == MAP_FAILED) {
    pe_free(b);
    return pe_fail(err, PE_ENOMEM, "out of memory: cannot reserve %llu bytes",
                   (unsigned long long)size);
  }
  b->data = p, b->size = size, b->pages = true, b->refs = 1;
  *out = b;
  return PE_OK;
}

/* A file in memory without a name, of this size; -1 and errno. */
static int anonymous_file(uint64_t size) {
#if defined(__linux__)
  int fd = memfd_create("perigee", MFD_CLOEXEC | MFD_ALLOW_SEALING);
#else
  char name[64];
  static int count;
  snprintf(name, sizeof name, "/perigee.%d.%d", (int)getpid(),
           __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));
  int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd >= 0) {
    shm_unlink(name);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
#endif
  if (fd < 0) return -1;
  bool sized = !ftruncate(fd, (off_t)size);
#if defined(__linux__)
  sized = sized && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
#endif
  if (sized) return fd;
  int why = errno;
  close(fd);
  errno = why;
  return -1;
}

pe_status pe_buffer_share(uint64_t size, pe_buffer **out, int *fd, pe_error *err) {
  pe_buffer *b = pe_calloc(1, sizeof *b);
  if (!b) return pe_nomem(err, "buffer");
  void *p = MAP_FAILED;
  int file = size < SIZE_MAX / 2 ? anonymous_file(size ? size : 1) : -1;
  if (file >= 0) p = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) {
    pe_fail(err, PE_EIO, "cannot share %llu bytes: %s", (unsigned long long)size, strerror(errno));
    if (file >= 0) close(file);
    pe_free(b);
    return PE_EIO;
  }
  b->data = p, b->size = size, b->pages = true, b->refs = 1;
  *out = b, *fd = file;
  return PE_OK;
}

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

#if defined(__APPLE__)
static int64_t changed_ns(const struct stat *st) { return nanoseconds(st->st_mtimespec); }
static int64_t touched_ns(const struct stat *st) { return nanoseconds(st->st_ctimespec); }
#else
static int64_t changed_ns(const struct stat *st) { return nanoseconds(st->st_mtim); }
static int64_t touched_ns(const struct stat *st) { return nanoseconds(st->st_ctim); }
#endif

static pe_status map_fd(int fd, const char *path, pe_buffer *b, pe_error *err) {
  struct stat st;
  if (fstat(fd, &st)) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return pe_fail(err, PE_EIO, "%s: not a regular file", path);
  b->size = (uint64_t)st.st_size, b->device = (uint64_t)st.st_dev, b->inode = (uint64_t)st.st_ino;
  b->changed_ns = changed_ns(&st), b->touched_ns = touched_ns(&st);
  if (!b->size) return PE_OK; /* mmap refuses length 0 */
  void *p = mmap(NULL, b->size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED)
    return pe_fail(err, PE_EIO, "%s: cannot map %llu bytes: %s", path, (unsigned long long)b->size,
                   strerror(errno));
  b->data = p;
  b->watch = pe_fault_watch(p, b->size);
  return PE_OK;
}

pe_status pe_buffer_map(const char *path, pe_buffer **out, pe_error *err) {
  pe_buffer *b = pe_calloc(1, sizeof *b);
  if (!b) return pe_nomem(err, "buffer");
  b->mapped = b->pages = true, b->refs = 1;
  /* O_NONBLOCK: a named pipe must be refused, not waited for */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  pe_status rc =
      fd < 0 ? pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno)) : map_fd(fd, path, b, err);
  if (fd >= 0) close(fd);
  if (rc)
    pe_free(b);
  else
    *out = b;
  return rc;
}

bool pe_buffer_lost(const pe_buffer *b) { return pe_fault_marked(b->watch); }

bool pe_buffer_check(const pe_buffer *b, const char *path) {
  struct stat st;
  if (!b->watch || pe_buffer_lost(b)) return !b->watch;
  if (stat(path, &st)) return true;
  bool same_file = (uint64_t)st.st_dev == b->device && (uint64_t)st.st_ino == b->inode;
  if (same_file && ((uint64_t)st.st_size != b->size || changed_ns(&st) != b->changed_ns))
    pe_fault_mark(b->watch);
  return !pe_buffer_lost(b);
}

/* How pages of our own are given back; those of files always with MADV_DONTNEED. */
#if defined(__APPLE__)
enum { GIVE_OWN = MADV_FREE }; /* with the other one it keeps what was written */
#else
enum { GIVE_OWN = MADV_DONTNEED };
#endif

/* The whole pages between two offsets. */
static void release_pages(const pe_buffer *b, uint64_t at, uint64_t size, int how) {
  long asked = sysconf(_SC_PAGESIZE);
  uint64_t page = asked > 0 ? (uint64_t)asked : 4096;
  uint64_t first = (at + page - 1) / page * page, end = (at + size) / page * page;
  if (end > first) (void)madvise(b->data + first, end - first, how);
}

void pe_buffer_discard(const pe_buffer *b, uint64_t at, uint64_t size) {
  if (b->pages && !b->mapped) release_pages(b, at, size, GIVE_OWN);
}

void pe_buffer_forget(const pe_buffer *b, uint64_t at, uint64_t size) {
  if (b->mapped) release_pages(b, at, size, MADV_DONTNEED);
}

void pe_buffer_large_pages(const pe_buffer *b) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (b->pages && !b->mapped) (void)madvise(b->data, b->size, MADV_HUGEPAGE);
#else
  (void)b;
#endif
}

void pe_buffer_touch(const pe_buffer *b, uint64_t at, uint64_t size) {
  if (!size) return;
  long asked = sysconf(_SC_PAGESIZE);
  uint64_t page = asked > 0 ? (uint64_t)asked : 4096, end = at + size;
#ifdef POSIX_MADV_WILLNEED
  uint64_t first = at / page * page;
  if (b->mapped)
    posix_madvise(b->data + first, end - first, POSIX_MADV_WILLNEED); /* a hint, may fail */
#endif
  volatile const uint8_t *p = b->data;
  for (uint64_t i = at; i < end; i += page) (void)p[i];
  (void)p[end - 1];
}

pe_buffer *pe_buffer_retain(pe_buffer *b) {
  __atomic_fetch_add(&b->refs, 1, __ATOMIC_RELAXED);
  return b;
}

void pe_buffer_release(pe_buffer *b) {
  if (!b || __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL)) return;
  pe_fault_unwatch(b->watch);
  if (!b->pages)
    pe_free(b->data);
  else if (b->data)
    munmap(b->data, b->size ? b->size : 1);
  pe_free(b);
}
