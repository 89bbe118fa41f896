/* pty.c - drives a program on a pseudo-terminal: pty PROGRAM [ARG...] < script
 *
 * Lines of the script: `send TEXT` types it, `expect TEXT` waits until the program has printed it
 * (after the text expected before), `wait MS`, `end STATUS` waits for the program to exit with that
 * status. TEXT may contain \r \n \t \e \\ and \xHH. Exit status: 0 if everything came, 1 with one
 * line that names what did not. */
#define _XOPEN_SOURCE 600
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#define _DARWIN_C_SOURCE
#endif
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000 }; /* a benchmark under the thread sanitizer takes 20 s */

static char seen[1 << 20]; /* all that the program has shown */
static size_t n_seen, at;  /* and how much of it was expected */
static int terminal;
static pid_t child;

static long long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Reads what there is; false when the program has gone. */
static bool drain(int ms) {
  struct pollfd p = {.fd = terminal, .events = POLLIN};
  if (poll(&p, 1, ms) <= 0) return true;
  if (n_seen == sizeof seen - 1) return false;
  ssize_t n = read(terminal, seen + n_seen, sizeof seen - 1 - n_seen);
  if (n <= 0) return false;
  n_seen += (size_t)n;
  return true;
}

static size_t unescape(char *s) {
  char *out = s, *from = s;
  static const char names[] = "rnte\\", values[] = "\r\n\t\033\\";
  while (*from) {
    const char *name = *from == '\\' && from[1] ? strchr(names, from[1]) : NULL;
    if (name)
      *out++ = values[name - names], from += 2;
    else if (*from == '\\' && from[1] == 'x' && from[2] && from[3]) {
      char hex[3] = {from[2], from[3], 0};
      *out++ = (char)strtol(hex, NULL, 16), from += 4;
    } else
      *out++ = *from++;
  }
  *out = 0;
  return (size_t)(out - s);
}

static bool expect(const char *text, size_t len) {
  for (long long end = now_ms() + TIMEOUT_MS; now_ms() < end;) {
    for (size_t i = at; i + len <= n_seen; i++)
      if (!memcmp(seen + i, text, len)) {
        at = i + len;
        return true;
      }
    if (!drain(50) && n_seen == at) break;
  }
  return false;
}

static bool leaves(int want) {
  int status = -1;
  for (long long end = now_ms() + TIMEOUT_MS; now_ms() < end;) {
    drain(20);
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) && WEXITSTATUS(status) == want;
  }
  return false;
}

static bool start(char **argv) {
  terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) return false;
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  ioctl(terminal, TIOCSWINSZ, &size);
  const char *name = ptsname(terminal);
  child = fork();
  if (child) return child > 0;
  setsid();
  int fd = open(name, O_RDWR);
  ioctl(fd, TIOCSCTTY, 0);
  for (int i = 0; i < 3; i++) dup2(fd, i);
  close(terminal);
  execv(argv[0], argv);
  _exit(127);
}

int main(int argc, char **argv) {
  char line[4096];
  if (argc < 2 || !start(argv + 1)) return perror("pty"), 2;
  bool good = true;
  while (good && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    char *text = strchr(line, ' ');
    if (!text || line[0] == '#') continue;
    *text++ = 0;
    if (!strcmp(line, "send")) {
      size_t len = unescape(text);
      good = write(terminal, text, len) == (ssize_t)len;
    } else if (!strcmp(line, "expect"))
      good = expect(text, unescape(text));
    else if (!strcmp(line, "wait"))
      for (long long end = now_ms() + atoi(text); now_ms() < end;) drain(10);
    else if (!strcmp(line, "end"))
      good = leaves(atoi(text)), child = 0;
    if (!good)
      printf("%s %s: did not happen; the terminal shows:\n%.*s\n", line, text, (int)(n_seen - at),
             seen + at);
  }
  if (child > 0) kill(child, SIGKILL);
  return !good;
}
