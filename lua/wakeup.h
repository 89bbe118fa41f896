/* wakeup.h - a pipe by which another thread wakes the loop: the loop watches the reading end.
 *
 *   int pair[2];
 *   if (!pe_wakeup_open(pair)) …                     errno says why
 *   pe_worker_open(…, pe_wakeup, &pair[1], …);       pair must live as long as the other thread
 *
 * Both ends are non-blocking and closed in child processes. */
#ifndef PE_WAKEUP_H
#define PE_WAKEUP_H

#include <stdbool.h>

bool pe_wakeup_open(int pair[2]);
void pe_wakeup_close(int pair[2]);

/* Wakes the loop; end: a const int *, the writing end. Any thread. */
void pe_wakeup(void *end);

#endif
