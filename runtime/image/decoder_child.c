/* decoder_child.c - see decoder_child.h. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "runtime/image/decoder_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

#include "runtime/image/child.h"
#include "runtime/image/confine.h"

/* ---- starting -------------------------------------------------------------------------------- */

/* This program. On Linux the link also leads to a file that has been replaced meanwhile. Under
 * valgrind it leads to valgrind, but reading it does not. */
static bool own_path(char *path, uint32_t size) {
#if defined(__APPLE__)
  return !_NSGetExecutablePath(path, &size);
#else
  static const char self[] = "/proc/self/exe";
  const char *preloaded = getenv("LD_PRELOAD");
  ssize_t n = preloaded && strstr(preloaded, "vgpreload") ? readlink(self, path, size - 1) : -1;
  if (n > 0)
    path[n] = 0;
  else
    memcpy(path, self, sizeof self);
  return true;
#endif
}

static bool open_sockets(int pair[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return false;
  for (int i = 0; i < 2; i++) fcntl(pair[i], F_SETFD, FD_CLOEXEC);
#if defined(SO_NOSIGPIPE)
  int on = 1;
  setsockopt(pair[0], SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  return true;
}

/* Signals as in a new program, and its own process group: Ctrl-C in the terminal is for the server,
 * which decides what to do about its jobs. */
static int spawn(const char *path, char *const *arguments, int socket, pid_t *pid) {
  static char *const environment[] = {
      PE_SANITIZED ? "ASAN_OPTIONS=detect_leaks=0:exitcode=99" : NULL, NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  sigset_t none, all;
  sigemptyset(&none), sigfillset(&all);
  if (posix_spawn_file_actions_init(&files)) return ENOMEM;
  if (posix_spawnattr_init(&how)) {
    posix_spawn_file_actions_destroy(&files);
    return ENOMEM;
  }
  int rc = posix_spawn_file_actions_adddup2(&files, socket, STDIN_FILENO);
  if (!rc) rc = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  if (!rc && !PE_SANITIZED) /* a sanitizer reports there */
    rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  if (!rc) rc = posix_spawnattr_setsigmask(&how, &none);
  if (!rc) rc = posix_spawnattr_setsigdefault(&how, &all);
  if (!rc) rc = posix_spawnattr_setpgroup(&how, 0);
  if (!rc)
    rc = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                            POSIX_SPAWN_SETPGROUP);
  if (!rc) rc = posix_spawn(pid, path, &files, &how, arguments, environment);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  return rc;
}

pe_status pe_decoder_child_start(pe_decoder_child *c, uint64_t memory, pe_error *err) {
  char path[4096], bytes[32];
  int pair[2];
  if (!own_path(path, sizeof path))
    return pe_fail(err, PE_EIO, "the picture decoder cannot find its own program");
  if (!open_sockets(pair))
    return pe_fail(err, PE_EIO, "cannot open a socket to the picture decoder: %s", strerror(errno));
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)memory);
  char *const arguments[] = {"perigee", PE_CHILD_ARGUMENT, bytes, NULL};
  int rc = spawn(path, arguments, pair[1], &c->pid);
  close(pair[1]);
  if (rc) {
    close(pair[0]);
    c->pid = 0;
    return pe_fail(err, PE_EIO, "cannot start the picture decoder: %s", strerror(rc));
  }
  c->socket = pair[0], c->jobs = 0;
  return PE_OK;
}

bool pe_decoder_child_stop(pe_decoder_child *c) {
  if (!c->pid) return false;
  int status = 0;
  close(c->socket);
  kill(c->pid, SIGKILL);
  while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {}
  *c = (pe_decoder_child){0};
  return WIFEXITED(status) && WEXITSTATUS(status) == PE_CHILD_NOT_CONFINED;
}

/* ---- an exchange ----------------------------------------------------------------------------- */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: an option of the socket */
#endif

/* A request is smaller than the socket's buffer, which is empty, so this does not block. */
static bool send_request(int socket, const pe_wire_request *request, const int fd[2]) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(2 * sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  size_t bytes = (fd[1] >= 0 ? 2 : 1) * sizeof(int);
  struct iovec part = {(char *)(uintptr_t)request, sizeof *request};
  struct msghdr m = {.msg_iov = &part,
                     .msg_iovlen = 1,
                     .msg_control = &control,
                     .msg_controllen = CMSG_SPACE(bytes)};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(c), fd, bytes);
  ssize_t n;
  do n = sendmsg(socket, &m, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n == (ssize_t)sizeof *request;
}

pe_exchange pe_decoder_child_ask(pe_decoder_child *c, const pe_wire_request *request,
                                 const int fd[2], int64_t until, pe_wire_reply *reply) {
  if (!send_request(c->socket, request, fd)) return PE_EXCHANGE_DIED;
  size_t got = 0;
  while (got < sizeof *reply) {
    int64_t left = (until - pe_clock_ns()) / 1000000 + 1;
    if (left <= 0) return PE_EXCHANGE_LATE;
    struct pollfd p = {.fd = c->socket, .events = POLLIN};
    int rc = poll(&p, 1, left > 60000 ? 60000 : (int)left);
    if (rc < 0 && errno != EINTR) return PE_EXCHANGE_DIED;
    if (rc <= 0) continue;
    ssize_t n = recv(c->socket, (char *)reply + got, sizeof *reply - got, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return PE_EXCHANGE_DIED;
    got += (size_t)n;
  }
  c->jobs++;
  return pe_wire_check_reply(request, reply) ? PE_EXCHANGE_DONE : PE_EXCHANGE_DIED;
}
