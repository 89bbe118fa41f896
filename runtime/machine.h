/* machine.h - what this machine offers: processor, memory, limits.
 *
 * Numbers are read when asked and may change meanwhile (free memory). A number that the system does not tell
 * is 0, a text that it does not tell is "". Any thread may ask; nothing is allocated. */
#ifndef PE_MACHINE_H
#define PE_MACHINE_H

#include "runtime/base.h"

typedef struct pe_machine {
  char system[80];           /* "Linux 6.1.0 x86_64" */
  char cpu[128];             /* the processor's own name */
  int cores;                 /* this process may use */
  int cores_online;          /* the machine has */
  uint64_t memory;           /* bytes */
  uint64_t memory_available; /* bytes that could be had without swapping */
  uint64_t memory_limit;     /* bytes: what the control group allows, 0 when it does not matter */
  uint64_t page_size;
  uint64_t open_files;    /* how many this process may have open */
  uint64_t locked_memory; /* bytes this process may lock; UINT64_MAX: no limit */
} pe_machine;

void pe_machine_read(pe_machine *out);

/* Lets this process have as many files open as it may; *files is how many that are (UINT64_MAX: no limit). */
pe_status pe_machine_raise_files(uint64_t *files, pe_error *err);

/* Walks the instruction sets of this processor: the name of the next one, or NULL. Start with *at = 0. */
const char *pe_machine_next_feature(int *at);

#endif
