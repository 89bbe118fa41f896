/* run.h - the part of one sequence in a step: its new tokens and its caches.
 *
 * pe_seq_run fills it, the device reads it. It borrows everything from the sequence until the step
 * is done. */
#ifndef PE_RUN_H
#define PE_RUN_H

#include "runtime/cache/kv.h"
#include "runtime/cache/media.h"

typedef struct pe_run {
  const int32_t *token;  /* ids, and names of pictures (names.h) */
  int32_t count, past;   /* new tokens; tokens already computed */
  int32_t outputs;       /* compute logits for the last `outputs` new tokens */
  pe_wanted wanted;      /* of each of them */
  int32_t slot;          /* of its recurrent state */
  int32_t rope_length;   /* see op.h */
  const pe_media *media; /* pictures and positions of its prompt, or NULL */
  const pe_kv_seq *kv;   /* block tables with room for past + count tokens */
} pe_run;

#endif
