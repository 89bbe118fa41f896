/* thread.c - see thread.h. */
#include "runtime/thread.h"

#include <signal.h>

int pe_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg) {
  static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
  sigset_t blocked, old;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &old);
  int rc = pthread_create(out, NULL, run, arg);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return rc;
}
