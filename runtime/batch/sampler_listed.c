/* sampler_listed.c - see sampler_listed.h. */
#include "runtime/batch/sampler_listed.h"

#include "runtime/batch/sampler_parts.h"
#include "runtime/batch/sampler_search.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- what is wanted ------------------------------------------------------------------------ */

typedef enum way { WHOLE, FIRST, PLAIN, NUCLEUS } way; /* FIRST: of the best, this many */

static way way_of(const pe_sampling *p, bool changes) {
  if (p->allow) return WHOLE;
  if (p->temperature == 0) return FIRST;
  if (p->top_k) return p->top_k <= PE_SAMPLER_BEST ? FIRST : WHOLE;
  if (changes || p->typical_p < 1 || p->xtc_probability > 0) return WHOLE;
  return pe_draw_filters(p) ? NUCLEUS : PLAIN;
}

static int32_t first_of(const pe_sampling *p) { return p->temperature == 0 ? 1 : p->top_k; }

/* With changes, more are listed: as many as change or, in the middle of a long text, so many that
 * rarely too few of them are unchanged. */
static int64_t best_of(const pe_sampling *p, way w, int64_t changes) {
  enum { MORE = PE_SAMPLER_BEST };
  if (w == PLAIN) return 1;
  if (w == NUCLEUS) return PE_SAMPLER_BEST;
  return first_of(p) + (changes < MORE ? changes : MORE);
}

pe_wanted pe_sampler_wants(const pe_sampling *p, int32_t n, const pe_history *history,
                           int32_t ban_count) {
  const int64_t changes = pe_sampler_changes(n, p, history, ban_count);
  const way w = way_of(p, changes > 0);
  pe_wanted out = {0};
  if (w == WHOLE) return out;
  int64_t best = best_of(p, w, changes), least = w == FIRST ? first_of(p) : 1;
  if (best < p->top_logprobs) best = p->top_logprobs;
  if (least < p->top_logprobs) least = p->top_logprobs;
  const int32_t peaks = pe_list_peaks(n); /* a list of more than these would be the row */
  if (n > PE_WANTED_ROOM && best > peaks) best = peaks;
  if (best < least) return out;
  out.best = (int32_t)best;
  const float scale = w == PLAIN ? pe_draw_scale(p) : 1;
  if (p->top_logprobs >= 0 || w == NUCLEUS || (w == PLAIN && scale == 1))
    out.sums[0] = pe_scan_scale_of(1);
  if (scale != 1) out.sums[1] = pe_scan_scale_of(scale);
  return out;
}

bool pe_sampler_needs_list(const pe_sampling *p) { return way_of(p, false) == NUCLEUS; }

/* ---- the list of a row --------------------------------------------------------------------- */

static const pe_scan_span everything = {-FLT_MAX, INFINITY};

bool pe_sampler_list(pe_sampler *s, const float *row, const pe_wanted *wanted, pe_shortlist *out) {
  pe_list_space *l = &s->space.list;
  const float top = l->scan->peaks(row, s->n, s->raw_peak, NULL);
  if (!isfinite(top)) return false;
  const float from = pe_search_peak(l, s->raw_peak, wanted->best);
  const pe_scan_span span[2] = {{from, INFINITY}, {INFINITY, -INFINITY}};
  const pe_list all = {.x = row,
                       .n = s->n,
                       .wide = true,
                       .peak = s->raw_peak,
                       .part = {{s->n, everything}},
                       .parts = 1};
  const int32_t count = pe_list_gather(l, &all, span, l->part_index, l->part_key);
  if (count > PE_WANTED_ROOM) return false;
  memcpy(s->listed_id, l->part_index, (size_t)count * sizeof *s->listed_id);
  memcpy(s->listed, l->part_key, (size_t)count * sizeof *s->listed);
  *out = (pe_shortlist){.wanted = *wanted, .id = s->listed_id, .logit = s->listed, .count = count};
  for (int i = 0; i < 2; i++) {
    const float scale = wanted->sums[i].scale;
    float *sum = s->listed_sum + i * (s->n / PE_SCAN_BLOCK + 1);
    if (scale <= 0) continue;
    l->scan->weigh(row, s->n, everything, top, scale, NULL, sum);
    out->sum[i] = sum;
  }
  return true;
}

/* ---- the pick ------------------------------------------------------------------------------ */

typedef struct pick { /* a pick from a list */
  pe_sampler *s;
  const pe_sampling *p;
  const pe_shortlist *list;
  const float *row;
  float top;
} pick;

/* Whether the list has all tokens of the row that are not -infinity. */
static bool lists_all(const pick *k) {
  return k->list->wanted.best > pe_list_peaks(k->s->n) || k->list->count < k->list->wanted.best;
}

static double total_of(const pick *k) {
  double total = 0;
  for (int32_t i = 0; i * PE_SCAN_BLOCK < k->s->n; i++) total += (double)k->list->sum[0][i];
  return total;
}

static int32_t gather_listed(const pick *k) {
  pe_list_space *l = &k->s->space.list;
  memcpy(l->id, k->list->id, (size_t)k->list->count * sizeof *l->id);
  memcpy(l->x, k->list->logit, (size_t)k->list->count * sizeof *l->x);
  return k->list->count;
}

static void mark(const pe_sampler *s, int32_t id) {
  if (id >= 0 && id < s->n) s->mark[id / 32] |= UINT32_C(1) << id % 32;
}

/* The marked tokens, in order, to the space's ids, and their raw logits to s->copy. */
static int32_t unmark_all(const pick *k) {
  const pe_sampler *s = k->s;
  int32_t count = 0, *id = s->space.list.id;
  for (int32_t w = 0; w <= (s->n - 1) / 32; w++) {
    for (uint32_t bits = s->mark[w]; bits; bits &= bits - 1, count++) {
      id[count] = 32 * w + __builtin_ctz(bits);
      s->copy[id[count]] = k->row[id[count]];
    }
    s->mark[w] = 0;
  }
  return count;
}

static bool marked(const pe_sampler *s, int32_t id) { return s->mark[id / 32] >> id % 32 & 1; }

static void mark_list(const pick *k) {
  for (int32_t i = 0; i < k->list->count; i++) mark(k->s, k->list->id[i]);
}

/* How many tokens of the list nothing changes. */
static int32_t count_unchanged(const pick *k, const int32_t *ban_ids, int32_t ban_count,
                               int32_t seen) {
  const pe_sampler *s = k->s;
  const pe_sampling *p = k->p;
  int32_t count = 0;
  for (int32_t i = 0; i < p->bias_count; i++) mark(s, p->bias[i].id);
  for (int32_t i = 0; i < p->banned_count; i++) mark(s, p->banned[i]);
  for (int32_t i = 0; i < ban_count; i++) mark(s, ban_ids[i]);
  for (int32_t i = 0; i < seen; i++) mark(s, s->seen_id[i]);
  for (int32_t i = 0; i < k->list->count; i++) count += !marked(s, k->list->id[i]);
  memset(s->mark, 0, ((size_t)s->n / 32 + 1) * sizeof *s->mark);
  return count;
}

/* Whether penalties make no logit higher, nor NaN. */
static bool only_lower(const pe_sampling *p) {
  return p->repetition_penalty >= 1 && isfinite(p->repetition_penalty) &&
         p->presence_penalty >= 0 && p->frequency_penalty >= 0 && isfinite(p->frequency_penalty);
}

/* Those of the tokens seen that are marked stay in s->seen_id. */
static int32_t keep_marked(const pe_sampler *s, int32_t seen) {
  int32_t count = 0;
  for (int32_t i = 0; i < seen; i++) {
    s->seen_id[count] = s->seen_id[i], s->outputs[count] = s->outputs[i];
    count += marked(s, s->seen_id[i]);
  }
  return count;
}

/* The tokens of the list and those that bias and penalties may raise above it, as they change them.
 * All others are below those of the list that stay as they are, so if these are enough, the first
 * ones of the row are among the tokens gathered. -1: they are not. *nan: a change made one. */
static int32_t gather_changed(const pick *k, const pe_history *h, const int32_t *ban_ids,
                              int32_t ban_count, bool *nan) {
  const pe_sampler *s = k->s;
  const pe_sampling *p = k->p;
  int32_t seen = pe_sampler_seen(s, p, h);
  if (count_unchanged(k, ban_ids, ban_count, seen) < first_of(p) && !lists_all(k)) return -1;
  mark_list(k);
  for (int32_t i = 0; i < p->bias_count; i++) mark(s, p->bias[i].id);
  if (only_lower(p)) seen = keep_marked(s, seen);
  for (int32_t i = 0; i < seen; i++) mark(s, s->seen_id[i]);
  const int32_t count = unmark_all(k);
  pe_sampler_change_copy(s, p, ban_ids, ban_count, seen);
  for (int32_t i = 0; i < count; i++) {
    const float x = s->copy[s->space.list.id[i]];
    s->space.list.x[i] = x;
    *nan |= x != x;
  }
  return count;
}

/* The lowest id of the highest logit. */
static int32_t best_id(const pick *k) {
  return k->list->id[k->s->space.list.scan->find(k->list->logit, k->list->count, k->top)];
}

static int32_t draw_plain(const pick *k, int64_t position) {
  const pe_list_row row = {.x = k->row, .best = best_id(k)};
  const float *sum = k->list->sum[pe_draw_scale(k->p) != 1];
  return pe_draw_summed(&k->s->space, k->p, &row, sum, position);
}

static int32_t draw_nucleus(const pick *k, int64_t position) {
  const pe_list l = pe_list_few(&k->s->space.list, gather_listed(k));
  return pe_draw_nucleus(&k->s->space, k->p, &l, total_of(k), lists_all(k), position);
}

static pe_status pick_first(const pick *k, const pe_history *h, int64_t position,
                            const int32_t *ban_ids, int32_t ban_count, int32_t *id, pe_error *err) {
  const bool changes = pe_sampler_changes(k->s->n, k->p, h, ban_count) > 0;
  bool nan = false;
  const int32_t count = changes ? gather_changed(k, h, ban_ids, ban_count, &nan) : gather_listed(k);
  if (count < 0) return PE_OK;
  if (!nan) *id = pe_sampler_choose_few(k->s, k->p, count, position);
  return *id < 0 ? pe_sampler_no_token(position, err) : PE_OK;
}

static void report(const pick *k, pe_choice *out) {
  const pe_shortlist *l = k->list;
  const int32_t count =
      pe_draw_best_of(&k->s->space, l->logit, l->id, l->count, k->p->top_logprobs);
  pe_sampler_report(k->s, (double)k->top + log(total_of(k)), k->row[out->id], count, out);
}

pe_status pe_sampler_pick_listed(pe_sampler *s, const pe_sampling *p, const pe_shortlist *list,
                                 const float *row, const pe_history *history, int64_t position,
                                 const int32_t *ban_ids, int32_t ban_count, pe_choice *out,
                                 pe_error *err) {
  pick k = {s, p, list, row, 0};
  float lowest;
  pe_status rc = PE_OK;
  *out = (pe_choice){.id = -1};
  k.top = s->space.list.scan->range(list->logit, list->count, &lowest);
  switch (way_of(p, false)) {
  case PLAIN: out->id = draw_plain(&k, position); break;
  case NUCLEUS: out->id = draw_nucleus(&k, position); break;
  default: rc = pick_first(&k, history, position, ban_ids, ban_count, &out->id, err);
  }
  if (!rc && out->id >= 0 && p->top_logprobs >= 0) report(&k, out);
  return rc;
}
