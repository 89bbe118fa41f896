/* thread.h - threads of our own.
 *
 * Signals are the loop thread's, so all others block them, except those that a thread causes itself
 * (SIGBUS, SIGSEGV, SIGFPE, SIGILL): blocked, they would end the process before fault.h could
 * handle them. */
#ifndef PE_THREAD_H
#define PE_THREAD_H

#include <pthread.h>

/* Between two looks at a value that another thread is about to change. */
static inline void pe_thread_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* 0, or the error number of pthread_create. The caller joins it. */
int pe_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

#endif
