/* sampler_draw.c - see sampler_draw.h. */
#include "runtime/batch/sampler_draw.h"

#include "runtime/batch/sampler_search.h"

#include <float.h>
#include <math.h>
#include <string.h>

pe_status pe_draw_space_open(pe_draw_space *s, int32_t vocabulary, pe_error *err) {
  return pe_list_space_open(&s->list, vocabulary, err);
}

void pe_draw_space_close(pe_draw_space *s) { pe_list_space_close(&s->list); }

static const pe_scan_span everything = {-FLT_MAX, INFINITY};

/* The row as it is, in a list that is not searched. */
static pe_list all_of(const pe_draw_space *s, const pe_list_row *row) {
  pe_list l = {.x = row->x, .n = s->list.n, .wide = true, .whole = true, .parts = 1};
  l.peak = row->peak, l.top = row->x[row->best];
  l.part[0] = (pe_list_part){l.n, everything};
  return l;
}

/* ---- heaps of the best, with the worst on top ---------------------------------------------- */

static bool before(pe_draw_candidate a, pe_draw_candidate b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift(pe_draw_candidate *h, int32_t n, int32_t i) {
  pe_draw_candidate x = h[i];
  for (int32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(h[child], h[child + 1])) child++;
    if (before(h[child], x)) break;
    h[i] = h[child];
  }
  h[i] = x;
}

int32_t pe_draw_best_of(pe_draw_space *s, const float *x, const int32_t *id, int32_t n, int32_t k) {
  pe_draw_candidate *h = s->heap;
  if (k > PE_MAX_TOP_LOGPROBS) k = PE_MAX_TOP_LOGPROBS;
  const int32_t count = n < k ? n : k;
  if (count <= 0) return 0;
  for (int32_t i = 0; i < count; i++) h[i] = (pe_draw_candidate){x[i], id[i]};
  for (int32_t j = count / 2; j-- > 0;) sift(h, count, j);
  for (int32_t i = count; i < n; i++) { /* ids grow, so an equal logit never wins */
    i += (int32_t)s->list.scan->find(x + i, n - i, nextafterf(h[0].logit, INFINITY));
    if (i == n) break;
    h[0] = (pe_draw_candidate){x[i], id[i]};
    sift(h, count, 0);
  }
  return count;
}

int32_t pe_draw_best(pe_draw_space *s, const pe_list_row *row, int32_t k) {
  if (k <= 0) return 0;
  const pe_scan_span span[2] = {{pe_search_peak(&s->list, row->peak, k), INFINITY},
                                {INFINITY, -INFINITY}};
  const pe_list all = all_of(s, row);
  int32_t n = pe_list_gather(&s->list, &all, span, s->list.part_index, s->list.part_key);
  return pe_draw_best_of(s, s->list.part_key, s->list.part_index, n, k);
}

pe_draw_candidate pe_draw_pop(pe_draw_space *s, int32_t *count) {
  pe_draw_candidate worst = s->heap[0];
  s->heap[0] = s->heap[--*count];
  sift(s->heap, *count, 0);
  return worst;
}

double pe_draw_total(pe_draw_space *s, const pe_list_row *row) {
  const pe_list all = all_of(s, row);
  return pe_list_weigh(&s->list, &all, 1, NULL);
}

/* ---- filters ------------------------------------------------------------------------------- */

typedef struct drawing {
  pe_list_space *s;
  const pe_sampling *p;
  pe_list l;
  int32_t best;         /* the best token of the row */
  double u;             /* what is drawn */
  float scale;          /* 1 / temperature */
  bool types, excludes; /* typical_p and xtc take part */
  double total,
      moment;    /* sums of weights, and of them times exponents, over the list; 0: unknown */
  int32_t drawn; /* the id, if a filter already found it; else -1 */
} drawing;

/* Copies what is left of a wide list, once that is a quarter. */
static void settle(drawing *d, double expected) {
  if (d->l.wide && expected * 4 <= d->l.n) pe_list_pack(d->s, &d->l);
}

static void keep_first(drawing *d, int32_t last) {
  pe_list_part part[2];
  if (!d->l.by_centre) d->l.span.low = d->l.x[last];
  pe_search_first(&d->l, last, part);
  pe_list_keep(d->s, &d->l, part, 2);
}

static void keep_from(drawing *d, float low) {
  if (low > d->l.span.low) d->l.span.low = low;
  pe_list_keep(d->s, &d->l, &(pe_list_part){d->l.n, {low, INFINITY}}, 1);
}

/* Whether so few stretches of a wide list reach `low` that to pack their tokens costs little. */
static bool rare(const drawing *d, float low) {
  int32_t n = pe_list_peaks(d->l.n);
  const float least[PE_SCAN_STEPS] = {low, low, low, low};
  double count[PE_SCAN_STEPS];
  d->s->scan->mass(d->l.peak, NULL, n, least, count);
  return 4 * count[0] <= n;
}

/* Packs the k best of a wide list, and some more, where that is a short way to them. Returns a
 * logit that the last of them is most likely below. */
static float pack_best(drawing *d, int32_t k) {
  pe_list *l = &d->l;
  bool peaks = k <= pe_list_peaks(l->n);
  const pe_list all = *l;
  if (!peaks && (int64_t)k * 4 > l->n) return INFINITY;
  pe_scan_band band = {.high = INFINITY};
  if (peaks)
    band.low = pe_search_peak(d->s, l->peak, k);
  else
    band = pe_search_band(d->s, l, k);
  keep_from(d, band.low);
  pe_list_pack(d->s, l);
  if (!peaks && l->n < k) *l = all; /* the sample misled */
  return band.high;
}

static void top_k(drawing *d, int32_t k) {
  pe_list *l = &d->l;
  float high = l->wide ? pack_best(d, k) : INFINITY;
  if (l->wide) {
    pe_search_kept kept = pe_search_wide(
        d->s, l, &(pe_search_cut){.count = k, .low = -INFINITY, .always = -1, .scale = d->scale});
    if (kept.last >= 0) keep_first(d, kept.last);
    settle(d, k); /* so that few are summed in one way, however they were found */
  } else if (k < l->n) {
    keep_first(d, pe_search_kth(d->s, l, k, high));
  }
}

static float at_or_above(double x) {
  float y = (float)x;
  return (double)y < x ? nextafterf(y, INFINITY) : y;
}

/* From a wide list, top_p, min_p and the draw if nothing comes between take one pass. */
static void cut_wide(drawing *d, float low) {
  if (d->p->top_p >= 1) {
    keep_from(d, low);
    return;
  }
  pe_search_kept kept = pe_search_wide(d->s, &d->l,
                                       &(pe_search_cut){.reach = (double)d->p->top_p,
                                                        .low = low,
                                                        .always = -1,
                                                        .moments = d->types,
                                                        .draws = !d->types,
                                                        .scale = d->scale,
                                                        .u = d->u});
  d->total = kept.total, d->moment = kept.moment, d->drawn = kept.drawn;
  if (d->drawn >= 0 && !d->excludes) return;
  if (kept.last >= 0)
    keep_first(d, kept.last);
  else
    keep_from(d, low);
  settle(d, kept.expected);
}

/* Packs the list, if it is not yet. */
static void cut_packed(drawing *d, float low) {
  bool sums = d->p->top_p<1, drops = low> - INFINITY;
  double total = sums ? pe_list_weigh(d->s, &d->l, 1, drops ? NULL : d->s->weight) : 0, all = total;
  if (drops) {
    keep_from(d, low);
    if (d->l.wide) pe_list_pack(d->s, &d->l);
    if (sums) all = pe_list_weigh(d->s, &d->l, 1, d->s->weight);
  }
  double target = (double)d->p->top_p * total;
  if (sums && target <= all) /* else min_p keeps less */
    keep_first(d, pe_search_packed(d->s, &d->l, d->l.x, d->s->weight, target, NULL));
}

/* The lowest logit that min_p keeps; -INFINITY: it keeps all. */
static float low_of(const pe_sampling *p, float top) {
  if (p->min_p <= 0) return -INFINITY;
  const float low = at_or_above((double)top + log((double)p->min_p));
  return low < top ? low : top;
}

static void top_p_min_p(drawing *d) {
  const float low = low_of(d->p, d->l.top);
  if (d->l.wide && !rare(d, low))
    cut_wide(d, low);
  else
    cut_packed(d, low);
}

/* Keeps the most typical up to `last`, and the best token if it is apart from them. */
static void keep_typical(drawing *d, int32_t last, int32_t best, bool apart) {
  pe_list_part first[2], alone = {best + 1, {-FLT_MAX, INFINITY}};
  pe_search_first(&d->l, last, first);
  d->l.span = first[0].span;
  if (!apart)
    pe_list_keep(d->s, &d->l, first, 2);
  else if (best <= last)
    pe_list_keep(d->s, &d->l, (pe_list_part[]){{best, first[0].span}, alone, first[0], first[1]},
                 4);
  else
    pe_list_keep(d->s, &d->l, (pe_list_part[]){first[0], {best, first[1].span}, alone, first[1]},
                 4);
}

/* Sums of weights and of weights times exponents give the entropy: log(total) - moment / total. The
 * surprise of a token minus the entropy is its distance to the logit `centre`. */
static void typical(drawing *d) {
  pe_list *l = &d->l;
  if (d->total <= 0 || !l->wide) {
    pe_scan_query q = {.kind = PE_SCAN_MOMENT, .top = l->top, .scale = 1};
    pe_scan_tally sums = pe_list_tally(d->s, l, q);
    d->total = sums.first.all, d->moment = sums.second.all;
  }
  l->by_centre = true;
  l->centre = (float)((double)l->top + d->moment / d->total);
  if (l->wide) {
    pe_search_kept kept = pe_search_wide(d->s, l,
                                         &(pe_search_cut){.reach = (double)d->p->typical_p,
                                                          .low = -INFINITY,
                                                          .always = d->best,
                                                          .draws = true,
                                                          .scale = d->scale,
                                                          .u = d->u});
    d->total = kept.total, d->drawn = kept.drawn;
    if (!d->excludes) return;
    keep_typical(d, kept.last, d->best, kept.apart);
    settle(d, kept.expected);
    return;
  }
  int32_t best = (int32_t)d->s->scan->find(l->x, l->n, l->top);
  double total = pe_list_weigh(d->s, l, 1, d->s->weight);
  d->s->scan->nearness(l->x, l->n, l->centre, d->s->key);
  int32_t last =
      pe_search_packed(d->s, l, d->s->key, d->s->weight, (double)d->p->typical_p * total, NULL);
  pe_list_part first[2];
  pe_search_first(l, last, first);
  pe_scan_span at_best = first[best > last].span;
  keep_typical(d, last, best, l->top < at_best.low || l->top > at_best.high);
  d->total = 0;
}

/* The lowest logit whose weight is at least `least`; above the top if there is none. */
static float lowest_of_weight(float top, double least) {
  int64_t out = (int64_t)pe_list_rank(-FLT_MAX) - 1, in = (int64_t)pe_list_rank(top) + 1;
  while (in - out > 1) {
    int64_t mid = out + (in - out) / 2;
    if (exp((double)pe_list_of_rank((int32_t)mid) - (double)top) < least)
      out = mid;
    else
      in = mid;
  }
  return pe_list_of_rank((int32_t)in);
}

/* Of the tokens at or above the threshold, only the least likely stays. */
static void xtc(drawing *d) {
  pe_list *l = &d->l;
  double total = d->total > 0 ? d->total : pe_list_weigh(d->s, l, 1, NULL);
  float low = lowest_of_weight(l->top, (double)d->p->xtc_threshold * total);
  int32_t *index = d->s->part_index, stays = 0;
  float *x = d->s->part_key;
  const pe_scan_span span[2] = {{low, INFINITY}, {INFINITY, -INFINITY}};
  int32_t count = low > l->top ? 0 : pe_list_gather(d->s, l, span, index, x);
  if (count < 2) return;
  for (int32_t i = 1; i < count; i++) /* in order of ids */
    if (x[i] <= x[stays]) stays = i;
  int32_t at = index[stays];
  pe_scan_span below = {-FLT_MAX, nextafterf(low, -INFINITY)}, all = {-FLT_MAX, INFINITY};
  l->top = x[stays], l->span.high = l->top;
  pe_list_keep(d->s, l, (pe_list_part[]){{at, below}, {at + 1, all}, {l->n, below}}, 3);
  d->drawn = -1;
}

/* ---- the draw ------------------------------------------------------------------------------ */

/* Which of n tokens of a block has the place `at` in its sum of weights. */
static int32_t place_in_block(const pe_list_space *s, const float *x, int32_t n, pe_scan_span span,
                              float top, float scale, double at) {
  float w[PE_SCAN_BLOCK], all;
  int32_t last = 0;
  s->scan->weigh(x, n, span, top, scale, w, &all);
  for (int32_t k = 0; k < n; k++) {
    if (w[k] > 0) last = k;
    if ((at -= (double)w[k]) < 0) break;
  }
  return last;
}

static int32_t block_size(int32_t left) { return left < PE_SCAN_BLOCK ? left : PE_SCAN_BLOCK; }

/* In the order of ids: the block first, then the token in it. */
static int32_t draw_by_id(drawing *d) {
  const pe_list *l = &d->l;
  double at = d->u * pe_list_weigh(d->s, l, d->scale, NULL);
  const float *sum = d->s->sum;
  int32_t from = 0;
  for (int i = 0; i < l->parts; from = l->part[i++].end)
    for (int32_t end = l->part[i].end; from < end; from += PE_SCAN_BLOCK, sum++) {
      if ((at -= (double)*sum) >= 0) continue;
      at += (double)*sum;
      return pe_list_id(l, from + place_in_block(d->s, l->x + from, block_size(end - from),
                                                 l->part[i].span, l->top, d->scale, at));
    }
  /* Rounding left a rest. */
  const pe_scan_span top[2] = {{l->top, l->top}, {INFINITY, -INFINITY}};
  pe_list_gather(d->s, l, top, d->s->part_index, d->s->part_key);
  return pe_list_id(l, d->s->part_index[0]);
}

/* Best first: u counts from the worst. */
static int32_t draw_by_rank(drawing *d) {
  const pe_list *l = &d->l;
  if (l->wide)
    return pe_search_wide(d->s, l,
                          &(pe_search_cut){.reach = 1,
                                           .low = -INFINITY,
                                           .always = -1,
                                           .draws = true,
                                           .scale = d->scale,
                                           .u = d->u})
        .drawn;
  double total = pe_list_weigh(d->s, l, d->scale, d->s->weight);
  if (l->by_centre) d->s->scan->nearness(l->x, l->n, l->centre, d->s->key);
  return pe_list_id(l, pe_search_packed(d->s, l, l->by_centre ? d->s->key : l->x, d->s->weight,
                                        (1 - d->u) * total, NULL));
}

/* Of temperatures above 8e37, and of those below 5e-39, the draw takes these: the others differ
 * only where logits are as far apart as 1e37, or as close as 1e-37. The scale in powers of two must
 * be a normal float. */
static float scale_of(double temperature) {
  return (float)fmin(fmax(1 / temperature, (double)FLT_MIN), 2e38);
}

/* best: of a wide list. */
static int32_t draw_from(pe_list_space *s, const pe_sampling *p, const pe_list *l, int32_t best,
                         int64_t position) {
  drawing d = {.s = s, .p = p, .l = *l, .best = best, .drawn = -1};
  bool cuts = p->top_p < 1 || p->min_p > 0;
  d.u = pe_sampler_uniform(p->seed, position, 0);
  d.excludes = pe_sampler_uniform(p->seed, position, 1) < (double)p->xtc_probability;
  d.types = p->typical_p < 1;
  d.scale = scale_of((double)p->temperature);
  d.l.by_rank = cuts || d.types;
  if (p->top_k && p->top_k < d.l.n) top_k(&d, p->top_k);
  if (cuts) top_p_min_p(&d);
  if (d.types) typical(&d);
  if (d.excludes) xtc(&d);
  if (d.drawn >= 0) return d.drawn;
  return d.l.by_rank ? draw_by_rank(&d) : draw_by_id(&d);
}

float pe_draw_scale(const pe_sampling *p) { return scale_of((double)p->temperature); }

bool pe_draw_filters(const pe_sampling *p) {
  return p->top_k || p->top_p < 1 || p->min_p > 0 || p->typical_p < 1 || p->xtc_probability > 0;
}

int32_t pe_draw_summed(const pe_draw_space *s, const pe_sampling *p, const pe_list_row *row,
                       const float *sum, int64_t position) {
  const int32_t n = s->list.n;
  double total = 0;
  for (int32_t i = 0; i * PE_SCAN_BLOCK < n; i++) total += (double)sum[i];
  double at = pe_sampler_uniform(p->seed, position, 0) * total;
  for (int32_t from = 0; from < n; from += PE_SCAN_BLOCK, sum++) {
    if ((at -= (double)*sum) >= 0) continue;
    at += (double)*sum;
    return from + place_in_block(&s->list, row->x + from, block_size(n - from), everything,
                                 row->x[row->best], pe_draw_scale(p), at);
  }
  return row->best; /* rounding left a rest */
}

int32_t pe_draw_nucleus(pe_draw_space *s, const pe_sampling *p, const pe_list *l, double total,
                        bool all, int64_t position) {
  drawing d = {.s = &s->list, .p = p, .l = *l};
  float low = low_of(p, l->top), lowest;
  s->list.scan->range(l->x, l->n, &lowest);
  const bool ends = all || lowest <= low; /* what min_p keeps is listed */
  if (!ends && p->top_p >= 1) return -1;
  d.u = pe_sampler_uniform(p->seed, position, 0), d.scale = pe_draw_scale(p);
  if (ends && p->min_p > 0) keep_from(&d, low);
  if (p->top_p < 1) {
    const double target = (double)p->top_p * total;
    const bool reached = target <= pe_list_weigh(d.s, &d.l, 1, d.s->weight);
    if (!reached && !ends) return -1;
    if (reached) keep_first(&d, pe_search_packed(d.s, &d.l, d.l.x, d.s->weight, target, NULL));
  }
  return draw_by_rank(&d);
}

int32_t pe_draw(pe_draw_space *s, const pe_sampling *p, const pe_list_row *row, int64_t position) {
  if (!pe_draw_filters(p)) {
    const pe_list all = all_of(s, row);
    pe_list_weigh(&s->list, &all, pe_draw_scale(p), NULL);
    return pe_draw_summed(s, p, row, s->list.sum, position);
  }
  const pe_list l = pe_list_of(&s->list, row);
  return draw_from(&s->list, p, &l, row->best, position);
}

int32_t pe_draw_few(pe_draw_space *s, const pe_sampling *p, const pe_list *l, int64_t position) {
  return draw_from(&s->list, p, l, -1, position);
}
