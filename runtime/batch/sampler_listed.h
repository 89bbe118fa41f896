/* sampler_listed.h - a pick that reads little of its row: the best logits and some sums, which a
 * device found (shortlist.h), and single logits or one block of the row.
 *
 *   temperature 0, or top_k up to   the list, and single logits that bias or penalties may have
 *   PE_SAMPLER_BEST, whatever else  raised: of the others the best are in the list
 *   no filter                       the block of the row in which the sums say that the token is
 *   top_p or min_p                  the list, if it has all that they keep
 *   logprobs with any of these      the list, the chosen logit, and the sums at scale 1
 *
 * The first two and logprobs have the bits of the pick from the whole row. With top_p or min_p the
 * weights are added in another order, so where a probability is within 3e-6 of the threshold, or a
 * draw of a border, the choice may be another one. Therefore a device that makes lists never mixes
 * the two: where such a row is read for another reason, its list is made here, by the rule of the
 * device, and the choice depends on nothing but the row.
 *
 * Whole rows are read for masks, typical_p, xtc and a larger top_k; for bias, bans and penalties
 * without top_k; and where a list turns out to be too short.
 *
 * Threads: as pe_sampler. */
#ifndef PE_SAMPLER_LISTED_H
#define PE_SAMPLER_LISTED_H

#include "runtime/batch/sampler.h"
#include "runtime/device/shortlist.h"

enum { PE_SAMPLER_BEST = 128 }; /* top_k is 20 to 64 in most recipes */

/* What a pick from n logits wants of them, with as many bans or fewer; best 0: all of them. */
pe_wanted pe_sampler_wants(const pe_sampling *p, int32_t n, const pe_history *history,
                           int32_t ban_count);
/* Whether a pick that wants a list must have one, on a device that makes them. */
bool pe_sampler_needs_list(const pe_sampling *p);
/* Makes the list of a row. False: there is none (shortlist.h). It borrows from the sampler until
 * the next list. */
bool pe_sampler_list(pe_sampler *s, const float *row, const pe_wanted *wanted, pe_shortlist *out);
/* As pe_sampler_pick, with a list of what pe_sampler_wants answered for these arguments. PE_OK with
 * the id -1: the whole row must be read. */
pe_status pe_sampler_pick_listed(pe_sampler *s, const pe_sampling *p, const pe_shortlist *list,
                                 const float *row, const pe_history *history, int64_t position,
                                 const int32_t *ban_ids, int32_t ban_count, pe_choice *out,
                                 pe_error *err);

#endif
