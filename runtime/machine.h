/* machine.h - what this machine offers: processor, memory, limits.
 *
 * Values are read on each call and may change (free memory). An unknown number is 0, an unknown
 * text is "". Any thread may call these; nothing is allocated. */
#ifndef PE_MACHINE_H
#define PE_MACHINE_H

#include "runtime/base.h"

typedef struct pe_machine {
  char system[80];           /* "Linux 6.1.0 x86_64" */
  char cpu[128];             /* the processor's name */
  int cores;                 /* that this process may use */
  int cores_online;          /* that the machine has */
  uint64_t memory;           /* bytes */
  uint64_t memory_available; /* bytes that can be used without swapping */
  uint64_t memory_limit;     /* bytes: limit of the control group; 0: none below `memory` */
  uint64_t page_size;
  uint64_t open_files;    /* limit of this process */
  uint64_t locked_memory; /* bytes this process may lock; UINT64_MAX: no limit */
} pe_machine;

void pe_machine_read(pe_machine *out);
int pe_machine_cores(void); /* cores this process may use, at least 1 */
/* Linux: cores that CPU quotas allow, rounded up; 0: no limit. That of the process's control group
 * counts, and those of all groups around it. folder: where groups are mounted (/sys/fs/cgroup);
 * groups: the file that names those of the process (/proc/self/cgroup). */
int pe_machine_quota(const char *folder, const char *groups);

/* Raises the limit of open files to the hard limit; *files is the new limit (UINT64_MAX: none). */
pe_status pe_machine_raise_files(uint64_t *files, pe_error *err);

/* Iterates over the instruction sets of this processor: the name of the next one, or NULL. Start
 * with *at = 0. */
const char *pe_machine_next_feature(int *at);
/* The same for the versions of the kernels that can run here, the best first; the last is "scalar".
 * PERIGEE_ISA=NAME in the environment chooses one. */
const char *pe_machine_next_kernels(int *at);

#endif
