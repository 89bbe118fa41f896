/* child.c - see child.h. */
#include "runtime/image/child.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "runtime/image/confine.h"

bool pe_child_is_meant(int argc, char **argv) {
  return argc == 3 && !strcmp(argv[1], PE_CHILD_ARGUMENT);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void describe(const pe_image_info *info, pe_wire_reply *reply) {
  reply->format = (int32_t)info->format, reply->orientation = info->orientation;
  reply->width = info->width, reply->height = info->height, reply->alpha = info->alpha;
}

static pe_status decode(const pe_wire_request *r, const uint8_t *in, uint8_t *out,
                        pe_wire_reply *reply, pe_error *err) {
  pe_image_limits limits = {r->pixels, r->memory};
  pe_image_info info;
  pe_image image;
  pe_status rc = pe_image_decode(in, r->size, &limits, &info, &image, err);
  if (rc) return rc;
  describe(&info, reply);
  pe_image_hash(&image, reply->hash);
  for (uint32_t i = 0; !rc && i < r->count; i++) {
    pe_image target = {r->target[i].width, r->target[i].height, out};
    rc = pe_resize(&image, (pe_filter)r->target[i].filter, &target, err);
    out += (uint64_t)target.width * (uint64_t)target.height * 3;
  }
  pe_image_free(&image);
  return rc;
}

void pe_child_work(const pe_wire_request *r, const uint8_t *in, uint8_t *out,
                   pe_wire_reply *reply) {
  *reply = (pe_wire_reply){.magic = PE_WIRE_MAGIC, .end = PE_WIRE_MAGIC, .job = r->job};
  pe_error err = {0};
  pe_image_limits limits = {r->pixels, r->memory};
  pe_image_info info;
  pe_status rc;
  if (r->op == PE_WIRE_ESCAPE) {
    rc = pe_confine_try(&err);
  } else if (r->op == PE_WIRE_PROBE) {
    rc = pe_image_probe(in, r->size, &limits, &info, &err);
    if (!rc) describe(&info, reply);
  } else {
    rc = decode(r, in, out, reply, &err);
  }
  reply->status = rc;
  if (rc) snprintf(reply->text, sizeof reply->text, "%.*s", PE_WIRE_TEXT - 1, err.text);
}

/* ---- the socket ------------------------------------------------------------------------------ */

enum { SOCKET = 0 };

/* Receives a request and its descriptors (-1: none). False: the program has gone away or is not
 * ours. */
static bool receive(pe_wire_request *r, int fd[2]) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(4 * sizeof(int))];
  } control;
  size_t got = 0;
  fd[0] = fd[1] = -1;
  while (got < sizeof *r) {
    struct iovec part = {(char *)r + got, sizeof *r - got};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    ssize_t n = recvmsg(SOCKET, &m, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || got) return false;
      size_t bytes = c->cmsg_len - CMSG_LEN(0);
      if (bytes > 2 * sizeof(int)) return false;
      memcpy(fd, CMSG_DATA(c), bytes);
    }
    got += (size_t)n;
  }
  return true;
}

static bool reply_with(const pe_wire_reply *reply) {
  size_t sent = 0;
  while (sent < sizeof *reply) {
    struct iovec part = {(char *)(uintptr_t)reply + sent, sizeof *reply - sent};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t n = sendmsg(SOCKET, &m, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += (size_t)n;
  }
  return true;
}

/* Receives, works, replies. False: the end. */
static bool serve_one(void) {
  pe_wire_request r;
  pe_wire_reply reply;
  int fd[2];
  uint64_t bytes = 0;
  if (!receive(&r, fd) || !pe_wire_check_request(&r, (fd[0] >= 0) + (fd[1] >= 0))) return false;
  if (!pe_wire_bytes(r.target, r.count, &bytes)) return false;
  void *in = mmap(NULL, r.size, PROT_READ, MAP_SHARED, fd[0], 0), *out = NULL;
  if (bytes) out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd[1], 0);
  close(fd[0]);
  if (fd[1] >= 0) close(fd[1]);
  if (in == MAP_FAILED || out == MAP_FAILED) return false;
  pe_child_work(&r, in, out, &reply);
  munmap(in, r.size);
  if (out) munmap(out, bytes);
  return reply_with(&reply);
}

int pe_child_main(int argc, char **argv) {
  pe_error err;
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 17); /* fixed, so that freed pictures return to the system */
#endif
  if (argc < 3 || pe_confine(strtoull(argv[2], NULL, 10), &err)) return PE_CHILD_NOT_CONFINED;
  while (serve_one()) {}
  return 0;
}
