/* shortlist.h - what is known of a row of logits without reading it: its best logits and, where
 * asked for, the sums of weights of its blocks (pe_wanted, op_args.h).
 *
 * A device that computes logits elsewhere makes it (backend.h); the sampler makes the same one from
 * a row (sampler_listed.h). The best are found by the peaks of stretches of PE_SCAN_PEAK logits:
 * the list has all finite logits from the `best`-th highest peak on, and all there are if the row
 * has fewer peaks. So it has the `best` highest, and some more where several of them are
 * neighbours. There is none if it would have more than PE_WANTED_ROOM logits, or if the highest is
 * not finite, or if a logit is NaN.
 *
 * Ownership: borrows all arrays. */
#ifndef PE_SHORTLIST_H
#define PE_SHORTLIST_H

#include "kernels/op_args.h"

typedef struct pe_shortlist {
  pe_wanted wanted;
  const int32_t *id; /* ascending */
  const float *logit;
  int32_t count;       /* at least wanted.best, unless the row has fewer finite logits */
  const float *sum[2]; /* of blocks of PE_SCAN_BLOCK logits, as pe_scan's weigh has them (scan.h);
                          NULL: not wanted */
} pe_shortlist;

#endif
