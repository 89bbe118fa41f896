/* fault.h - reads of mapped files that have become shorter.
 *
 * Weights are read where they are mapped. If somebody truncates such a file, or its disk fails, the
 * next read of a lost page is a SIGBUS, which would end the process and with it every request of
 * every model. Copying weights, or locking files that nobody else respects, would cost more than
 * the mistake. So a handler takes the signal: if the address is in a watched range, all of the
 * range becomes zeros, the range is marked, and the read continues. Whoever computes with it looks
 * at the mark afterwards and throws the result away (pe_weights_intact).
 *
 *   read of a lost page --> SIGBUS --> in a watched range? -- yes --> zeros, mark, continue
 *                                               `------------ no  --> the handler before ours
 *
 * A SIGBUS anywhere else ends the process as it always did. Contents that were overwritten cause
 * no signal: pe_weights_check compares size and time of the file.
 *
 * The handler only reads ranges and calls mmap, which is a plain system call on Linux and macOS. It
 * may run on any thread that does not block SIGBUS (thread.h), and while ranges come and go.
 *
 * Ownership: a range is the caller's, and must be unwatched before it is unmapped. Threads: any. */
#ifndef PE_FAULT_H
#define PE_FAULT_H

#include "runtime/base.h"

typedef struct pe_fault_range pe_fault_range;

/* Gives. `at` is the beginning of a mapping. NULL: thousands are watched; this one is not. */
pe_fault_range *pe_fault_watch(void *at, uint64_t size);
void pe_fault_unwatch(pe_fault_range *r); /* takes; NULL is fine */

void pe_fault_mark(pe_fault_range *r);         /* as if it had been hit */
bool pe_fault_marked(const pe_fault_range *r); /* NULL: no */

#endif
