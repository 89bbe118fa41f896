/* run.h - what one sequence contributes to a step: its new tokens and where its caches are.
 *
 * pe_seq_run fills it, the device reads it. Everything is borrowed from the sequence until the step is done. */
#ifndef PE_RUN_H
#define PE_RUN_H

#include "runtime/cache/kv.h"

typedef struct pe_run {
  const int32_t *token;
  int32_t count, past; /* new tokens; tokens computed before them */
  int32_t outputs;     /* logits are wanted for the last `outputs` of the new tokens */
  int32_t slot;        /* of its recurrent state */
  int32_t rope_length; /* see op.h */
  const pe_kv_seq *kv; /* block tables that reach past + count */
} pe_run;

#endif
