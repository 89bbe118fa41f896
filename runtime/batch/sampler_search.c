/* sampler_search.c - see sampler_search.h. */
#include "runtime/batch/sampler_search.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
  FEW = 48,      /* to sort them costs about as much as another pass */
  SAMPLE = 2048, /* tokens of a sample: with more, taking it costs more than it saves */
  HEAVY = 2048,  /* a token with this part of the weight is in every sample */
  GROUP = 16,    /* neighbours in a sample: they share a line of the cache */
  SEEKS = 8,     /* passes over a sample: each makes an interval five times shorter */
  FAR = 64,      /* wider intervals are divided by ratio: a mask may be as low as -1e30 */
};
/* Half of a band in standard deviations. Of narrower ones more mislead, which costs as much as the
 * rest of a pick: with 2 the mean is the same, with 3 it is 1.04 of it, with 1.5 1.1. */
static const double SIGMAS = 2.5;

/* ---- the order of floats ------------------------------------------------------------------- */

static float before(float x) { return nextafterf(x, -INFINITY); }
static float after(float x) { return nextafterf(x, INFINITY); }

/* The logit farthest from the centre, on one side of it, whose key is at least `key`, or above it
 * if `strict`. The centre counts as right. */
static float edge(float centre, float key, bool left, bool strict) {
  int64_t in = pe_list_rank(centre),
          out = left ? pe_list_rank(-FLT_MAX) - 1 : (int64_t)pe_list_rank(FLT_MAX) + 1;
  if (strict && key == 0) return left ? centre : before(centre);
  while (in - out > 1 || out - in > 1) {
    int64_t mid = in + (out - in) / 2;
    float here = -fabsf(pe_list_of_rank((int32_t)mid) - centre);
    if (strict ? here > key : here >= key)
      in = mid;
    else
      out = mid;
  }
  return pe_list_of_rank((int32_t)in);
}

static bool left_of_centre(const pe_list *l, int32_t index) {
  return l->by_centre && l->x[index] < l->centre;
}

static float key_of(const pe_list *l, float x) { return l->by_centre ? -fabsf(x - l->centre) : x; }

void pe_search_first(const pe_list *l, int32_t last, pe_list_part part[2]) {
  float c = l->centre, key = key_of(l, l->x[last]);
  bool left = left_of_centre(l, last);
  part[0] = (pe_list_part){last + 1, {key, INFINITY}};
  part[1] = (pe_list_part){l->n, {after(key), INFINITY}};
  if (!l->by_centre) return;
  part[0].span = (pe_scan_span){edge(c, key, true, !left), edge(c, key, false, false)};
  part[1].span = (pe_scan_span){edge(c, key, true, true), edge(c, key, false, !left)};
}

/* ---- packed tokens ------------------------------------------------------------------------- */

typedef struct part { /* the tokens that are left; all before them weigh `before` */
  const float *key, *weight;
  const int32_t *index; /* in the list; NULL: all of it */
  int32_t n;
  double before;
} part;

typedef struct search {
  const pe_list *l;
  double target, reached;
} search;

static int32_t index_at(const part *a, int32_t i) { return a->index ? a->index[i] : i; }
static float weight_at(const part *a, int32_t i) { return a->weight ? a->weight[i] : 1; }

/* All keys are equal; there is a centre. */
static int32_t search_equal(search *q, const part *a) {
  int32_t last = 0;
  q->reached = a->before;
  for (int left = 0; left < 2; left++)
    for (int32_t i = 0; i < a->n && q->reached < q->target; i++)
      if (left_of_centre(q->l, index_at(a, i)) == left) {
        q->reached += (double)weight_at(a, i);
        last = i;
      }
  return index_at(a, last);
}

static bool ahead(const search *q, const part *a, int32_t i, int32_t j) {
  if (a->key[i] != a->key[j]) return a->key[i] > a->key[j];
  bool left = left_of_centre(q->l, index_at(a, i));
  if (left != left_of_centre(q->l, index_at(a, j))) return !left;
  return index_at(a, i) < index_at(a, j);
}

static int32_t search_few(search *q, const part *a) {
  int32_t order[FEW] = {0}, last = 0;
  for (int32_t i = 0; i < a->n; i++) {
    int32_t at = i;
    for (; at > 0 && ahead(q, a, i, order[at - 1]); at--) order[at] = order[at - 1];
    order[at] = i;
  }
  q->reached = a->before;
  for (int32_t i = 0; i < a->n; i++) {
    float w = weight_at(a, order[i]);
    if (w > 0)
      last = i; /* rounding may leave a rest, which must not go to a token without weight */
    if ((q->reached += (double)w) >= q->target) break;
  }
  return index_at(a, order[last]);
}

/* Four thresholds, the highest first; the last one has all keys at or above it. They divide the
 * keys evenly, or closely around the answer if it is known where that is in an even spread: after
 * this part of the keys; `even` means that it is not. */
static const double even = -1;
static void thresholds(float low, float high, double part, float at[PE_SCAN_STEPS]) {
  enum { CLOSE = 16 };
  const double span = (double)high - (double)low;
  double cut[PE_SCAN_STEPS - 1] = {0.25, 0.5, 0.75};
  if (part >= 0)
    cut[0] = part - 1.0 / CLOSE, cut[1] = part + 1.0 / CLOSE, cut[2] = (1 + cut[1]) / 2;
  for (int j = 0; j < PE_SCAN_STEPS - 1; j++) {
    at[j] = (float)((double)high - span * cut[j]);
    if (at[j] <= low) at[j] = after(low);
  }
  at[PE_SCAN_STEPS - 1] = low;
}

static void narrow(pe_list_space *s, part *a, float low, float high) {
  const pe_scan_span span[2] = {{low, high}, {INFINITY, -INFINITY}};
  int32_t count = (int32_t)s->scan->gather(a->key, a->n, span, 0, s->index, s->part_key);
  for (int32_t i = 0; i < count && a->weight; i++) s->part_weight[i] = a->weight[s->index[i]];
  for (int32_t i = 0; i < count; i++) s->part_index[i] = index_at(a, s->index[i]);
  a->key = s->part_key, a->weight = a->weight ? s->part_weight : NULL;
  a->index = s->part_index, a->n = count;
}

/* The token at `target` in a long run of equal keys, and so of equal weights. */
static int32_t nth_equal(pe_list_space *s, search *q, const part *a, float key) {
  const pe_scan_span span[2] = {{key, key}, {INFINITY, -INFINITY}};
  int32_t count = (int32_t)s->scan->gather(a->key, a->n, span, 0, s->index, s->part_key);
  double each = (double)weight_at(a, s->index[0]), steps = ceil((q->target - a->before) / each) - 1;
  int32_t i = steps > 0 ? (steps < count - 1 ? (int32_t)steps : count - 1) : 0;
  q->reached = a->before + each * (i + 1);
  return index_at(a, s->index[i]);
}

/* inside: the weight of the part; 0: unknown. Where the spread is not even a close division gains
 * little, so every other one is even. */
static int32_t complete(pe_list_space *s, search *q, part a, double inside) {
  float at[PE_SCAN_STEPS], low, high;
  double mass[PE_SCAN_STEPS];
  for (bool close = inside > 0; a.n > FEW; close = !close) {
    high = s->scan->range(a.key, a.n, &low);
    if (low == high) return q->l->by_centre ? search_equal(q, &a) : nth_equal(s, q, &a, high);
    thresholds(low, high, close ? (q->target - a.before) / inside : even, at);
    s->scan->mass(a.key, a.weight, a.n, at, mass);
    double all = a.before + mass[PE_SCAN_STEPS - 1];
    if (q->target > all) q->target = all; /* they differ by rounding only */
    int j = 0;
    while (j < PE_SCAN_STEPS - 1 && (mass[j] == 0 || a.before + mass[j] < q->target)) j++;
    inside = mass[j];
    if (j) {
      high = before(at[j - 1]);
      a.before += mass[j - 1], inside -= mass[j - 1];
    }
    if (at[j] == high && !q->l->by_centre) return nth_equal(s, q, &a, high);
    narrow(s, &a, at[j], high);
  }
  return search_few(q, &a);
}

int32_t pe_search_packed(pe_list_space *s, const pe_list *l, const float *key, const float *weight,
                         double target, double *reached) {
  search q = {l, target, 0};
  int32_t found = complete(s, &q, (part){key, weight, NULL, l->n, 0}, 0);
  if (reached) *reached = q.reached;
  return found;
}

int32_t pe_search_kth(pe_list_space *s, const pe_list *l, int32_t k, float high) {
  const float least[PE_SCAN_STEPS] = {high, high, high, high};
  double count[PE_SCAN_STEPS];
  search q = {l, k, 0};
  part a = {l->x, NULL, NULL, l->n, 0};
  s->scan->mass(l->x, NULL, l->n, least, count);
  if (count[0] > 0 && count[0] < k) {
    narrow(s, &a, -FLT_MAX, before(high));
    a.before = count[0];
  }
  return complete(s, &q, a, 0);
}

/* ---- the sample ---------------------------------------------------------------------------- */

static const pe_scan_span everything = {-FLT_MAX, INFINITY};

/* From this logit on tokens are heavy at this scale. */
static float heavy_from(pe_list_space *s, const pe_list *l, float scale) {
  double total = 0;
  s->scan->weigh(s->sample, s->drawn, everything, l->top, scale, NULL, s->sum);
  for (int32_t i = 0; i < s->drawn; i += PE_SCAN_BLOCK) total += (double)s->sum[i / PE_SCAN_BLOCK];
  double limit = ((double)s->times * total + 1) / HEAVY;
  return limit < 1 ? (float)((double)l->top + log(limit) / (double)scale) : INFINITY;
}

/* Every stride-th group of tokens and, unless tokens are just counted, all heavy ones instead of
 * those in the groups. */
static void take_sample(pe_list_space *s, const pe_list *l, float scale, bool counts) {
  int32_t n = l->n, stride = n / SAMPLE, heavies = 0;
  s->drawn = 0, s->times = (float)stride;
  for (int32_t i = 0; i + GROUP <= n; i += GROUP * stride, s->drawn += GROUP)
    memcpy(s->sample + s->drawn, l->x + i, GROUP * sizeof *l->x);
  float from = counts ? INFINITY : heavy_from(s, l, 1), other = from;
  if (scale != 1 && !counts) other = heavy_from(s, l, scale);
  s->heavy = other < from ? other : from;
  if (s->heavy <= l->top) {
    const pe_scan_span span[2] = {{s->heavy, INFINITY}, {INFINITY, -INFINITY}};
    heavies = pe_list_gather(s, l, span, s->part_index, s->part_key);
    if (heavies > PE_LIST_WIDE - s->drawn) heavies = 0, s->heavy = INFINITY; /* enough as it is */
  }
  for (int32_t i = 0; i < s->drawn; i++)
    s->sample[i] = s->sample[i] >= s->heavy ? -INFINITY : s->sample[i];
  memcpy(s->sample + s->drawn, s->part_key, (size_t)heavies * sizeof *s->sample);
  s->samples = s->drawn + heavies;
}

typedef struct sketch { /* estimates about a wide list */
  pe_list_space *s;
  const pe_list *l;
  const float *key;
  const float *first, *second; /* weights for the cut and for the draw */
  float low, high;             /* keys are between them */
} sketch;

static double above(const sketch *k, const float *weight, float at) {
  const float least[PE_SCAN_STEPS] = {at, at, at, at};
  double mass[PE_SCAN_STEPS];
  k->s->scan->mass(k->key, weight, k->s->samples, least, mass);
  return mass[0];
}

/* About how many tokens, whether they are in the list or not. */
static double count_above(const sketch *k, float at) {
  const float least[PE_SCAN_STEPS] = {at, at, at, at};
  double drawn[PE_SCAN_STEPS], heavy[PE_SCAN_STEPS];
  const pe_list_space *s = k->s;
  s->scan->mass(k->key, NULL, s->drawn, least, drawn);
  s->scan->mass(k->key + s->drawn, NULL, s->samples - s->drawn, least, heavy);
  return (double)s->times * drawn[0] + heavy[0];
}

static void weigh_sample(const sketch *k, float scale, float *out) {
  pe_list_space *s = k->s;
  s->scan->weigh(s->sample, s->samples, k->l->span, k->l->top, scale, out, s->sum);
  for (int32_t i = 0; i < s->drawn; i++) out[i] *= s->times;
}

static void count_sample(const sketch *k, float *out) {
  const pe_list_space *s = k->s;
  for (int32_t i = 0; i < s->samples; i++) {
    bool in = s->sample[i] >= k->l->span.low && s->sample[i] <= k->l->span.high;
    out[i] = in ? i < s->drawn ? s->times : 1 : 0;
  }
}

static sketch draw_sketch(pe_list_space *s, const pe_list *l, const pe_search_cut *cut,
                          const pe_scan_query *q) {
  sketch k = {.s = s, .l = l, .key = s->sample, .first = s->sample_first};
  float low = l->span.low, high = l->span.high < l->top ? l->span.high : l->top;
  if (cut->count) {
    count_sample(&k, s->sample_first);
  } else { /* weights end 87 below the top (scan.h) */
    float scale = q->kind == PE_SCAN_TWICE && q->other < q->scale ? q->other : q->scale;
    low = fmaxf(low, l->top - 87 / scale);
    weigh_sample(&k, q->scale, s->sample_first);
  }
  k.second = k.first;
  if (q->kind == PE_SCAN_TWICE) {
    weigh_sample(&k, q->other, s->sample_second);
    k.second = s->sample_second;
  }
  k.low = low, k.high = high;
  if (!l->by_centre) return k;
  s->scan->nearness(s->sample, s->samples, l->centre, s->sample_key);
  k.key = s->sample_key;
  k.low = -fmaxf(l->centre - low, high - l->centre), k.high = 0;
  return k;
}

/* Two keys with an estimated weight below `goal` from the high one on, and `goal` or more from the
 * low one on; b has such keys, and they end close to each other, with `width` between them. */
static pe_scan_band seek(const sketch *k, const float *weight, pe_scan_band b, double goal,
                         double width) {
  for (int pass = 0; pass < SEEKS; pass++) {
    float at[PE_SCAN_STEPS];
    double mass[PE_SCAN_STEPS], span = (double)b.high - (double)b.low;
    for (int j = 0; j < PE_SCAN_STEPS; j++) {
      double part = (j + 1.0) / (PE_SCAN_STEPS + 1);
      at[j] = (float)((double)b.high - (span > FAR ? pow(span, part) : span * part));
    }
    k->s->scan->mass(k->key, weight, k->s->samples, at, mass);
    int j = 0;
    while (j < PE_SCAN_STEPS && mass[j] < goal) j++;
    if (j < PE_SCAN_STEPS) b.low = at[j];
    if (j) b.high = at[j - 1];
    if (j && j < PE_SCAN_STEPS && mass[j] - mass[j - 1] <= width) break;
  }
  return b;
}

/* The weight of a token at this key that is not heavy. */
static double weight_near(const sketch *k, float key, float scale) {
  float c = k->l->centre, x = key;
  if (k->l->by_centre) x = c - key < k->s->heavy && c - key < k->l->top ? c - key : c + key;
  x = fminf(fminf(x, k->s->heavy), k->l->top);
  return exp(((double)x - (double)k->l->top) * (double)scale);
}

/* The band in which, most likely, the tokens complete `goal` of the weight `total` that is there
 * from the key `end` on: the sample's estimate, SIGMAS standard deviations to both sides, and
 * `more`. scale 0: tokens count 1. Returns about the key that completes it. */
static float bracket(const sketch *k, const float *weight, float scale, double goal, double total,
                     float end, double more, pe_scan_band *band) {
  float *square = k->s->sample_square;
  const pe_scan_band whole = {k->low, after(k->high)};
  double side = fmin(goal, total - goal); /* 1/64 of the smaller side moves its deviation by 1 % */
  float centre = seek(k, weight, whole, goal, side / 64).low;
  double near = (scale > 0 ? weight_near(k, centre, scale) : 1) * (double)k->s->times;
  for (int32_t i = 0; i < k->s->drawn; i++) square[i] = weight[i] * weight[i];
  for (int32_t i = k->s->drawn; i < k->s->samples; i++) square[i] = 0;
  const float least[PE_SCAN_STEPS] = {centre, end, end, end};
  double squares[PE_SCAN_STEPS];
  k->s->scan->mass(k->key, square, k->s->samples, least, squares);
  double part = total > 0 && goal < total ? goal / total : 1, rest = 1 - part;
  double over = squares[0], under = squares[1] - over;
  double margin = SIGMAS * sqrt(rest * rest * over + part * part * under) + 2 * near + more;
  *band = (pe_scan_band){-INFINITY, INFINITY};
  if (goal > margin)
    band->high =
        seek(k, weight, (pe_scan_band){centre, whole.high}, goal - margin, margin / 4).high;
  if (goal + margin < above(k, weight, -INFINITY))
    band->low =
        seek(k, weight, (pe_scan_band){whole.low, after(centre)}, goal + margin, margin / 4).low;
  return centre;
}

/* ---- wide lists ---------------------------------------------------------------------------- */

typedef struct pass { /* one pass over a wide list, and the tokens that a search packed after it */
  const pe_list *l;
  pe_scan_query q;
  pe_scan_tally sums;
  int32_t packed;
  bool above; /* the sums above the band are those above what was packed; else nothing is */
} pass;

/* The spans of logits whose keys are at least `low`, and below `high`. */
static void spans_of(const pe_list *l, float low, float high, pe_scan_span span[2]) {
  float c = l->centre;
  span[0] = (pe_scan_span){low, high < INFINITY ? before(high) : INFINITY};
  span[1] = (pe_scan_span){INFINITY, -INFINITY};
  if (!l->by_centre) return;
  span[0] = (pe_scan_span){edge(c, low, true, false), edge(c, low, false, false)};
  if (high > 0) return;
  span[1] = (pe_scan_span){after(edge(c, high, false, false)), span[0].high};
  span[0].high = before(edge(c, high, true, false));
}

/* Weights of what is packed. Returns their sum. scale 0: tokens count 1. */
static double weigh_packed(pe_list_space *s, const pass *p, float scale) {
  double total = 0;
  if (scale <= 0) return p->packed;
  s->scan->weigh(s->band, p->packed, everything, p->l->top, scale, s->band_weight, s->sum);
  for (int32_t i = 0; i < p->packed; i += PE_SCAN_BLOCK) total += (double)s->sum[i / PE_SCAN_BLOCK];
  return total;
}

static void pack(pe_list_space *s, pass *p, float low, float high) {
  pe_scan_span span[2];
  spans_of(p->l, low, high, span);
  p->packed = pe_list_gather(s, p->l, span, s->band_index, s->band);
  p->above = high < INFINITY;
}

/* Finds the token that completes the target, in the band `j` or, if the sample misled, above or
 * below. over: the sum above the band. */
static int32_t complete_wide(pe_list_space *s, pass *p, int j, float scale, double over, double all,
                             double target) {
  const pe_list *l = p->l;
  const pe_scan_band *band = &p->q.band[j];
  if (target > all) target = all;
  p->packed = pe_list_band(s, l, j, s->band_index, s->band);
  p->above = true;
  double inside = weigh_packed(s, p, scale);
  bool above = over > 0 && target <= over, misled = above || target > over + inside;
  if (misled && !above) pack(s, p, -INFINITY, band->high);
  if (above || !p->packed) pack(s, p, band->high, INFINITY); /* none below: rounding left a rest */
  if (misled) weigh_packed(s, p, scale);
  part a = {s->band, scale > 0 ? s->band_weight : NULL, s->band_index, p->packed,
            p->above ? over : 0};
  if (l->by_centre) {
    s->scan->nearness(s->band, a.n, l->centre, s->band_key);
    a.key = s->band_key;
  }
  search q = {l, target, 0};
  return complete(s, &q, a, misled ? 0 : inside);
}

/* The sums of the tokens up to `last`, which is among those packed for the first band. */
static void sum_first(const pe_list_space *s, const pass *p, int32_t last, double *first,
                      double *second) {
  pe_list_part part[2];
  pe_scan_query q = p->q;
  pe_scan_tally sums = {{{0}, 0}, {{0}, 0}};
  int32_t split = 0, end = p->packed;
  while (split < end) {
    const int32_t mid = split + (end - split) / 2;
    if (s->band_index[mid] <= last)
      split = mid + 1;
    else
      end = mid;
  }
  pe_search_first(p->l, last, part);
  q.span = part[0].span;
  pe_list_add(s, s->band, split, &q, &sums);
  q.span = part[1].span;
  pe_list_add(s, s->band + split, p->packed - split, &q, &sums);
  *first = sums.first.all + (p->above ? p->sums.first.above[0] : 0);
  *second = sums.second.all + (p->above ? p->sums.second.above[0] : 0);
}

static bool up_to(const pe_list *l, int32_t i, int32_t last) {
  float a = key_of(l, l->x[i]), b = key_of(l, l->x[last]);
  if (a != b) return a > b;
  bool left = left_of_centre(l, i);
  return left != left_of_centre(l, last) ? !left : i <= last;
}

/* Bands for the cut and for the draw, and in *at_low whether `low` is likely to be the cut. Returns
 * about how many tokens stay. */
static double plan(pe_list_space *s, pass *p, const pe_search_cut *cut, bool *at_low) {
  static const pe_scan_band empty = {INFINITY, INFINITY};
  sketch k = draw_sketch(s, p->l, cut, &p->q);
  float end = -INFINITY, scale = cut->count ? 0 : p->q.scale;
  double total = above(&k, k.first, -INFINITY), extra = 0;
  p->q.band[0] = p->q.band[1] = empty;
  if (cut->count || cut->reach < 1) {
    end = bracket(&k, k.first, scale, cut->count ? cut->count : cut->reach * total, total,
                  -INFINITY, 0, &p->q.band[0]);
    extra = above(&k, k.second, p->q.band[0].low) - above(&k, k.second, p->q.band[0].high);
  }
  *at_low = cut->low > -INFINITY && end <= cut->low;
  if (*at_low) p->q.band[0] = (pe_scan_band){cut->low, cut->low}, end = cut->low, extra = 0;
  if (cut->draws) {
    double kept = above(&k, k.second, end);
    bracket(&k, k.second, p->q.kind == PE_SCAN_TWICE ? cut->scale : p->q.scale, (1 - cut->u) * kept,
            kept, end, (1 - cut->u) * extra / 2, &p->q.band[1]);
  }
  return cut->count ? cut->count : count_above(&k, end);
}

/* weight: that of the first tokens. */
static int32_t draw(pe_list_space *s, pass *p, const pe_search_cut *cut, const pe_search_kept *k,
                    double weight) {
  bool twice = p->q.kind == PE_SCAN_TWICE;
  double target = (1 - cut->u) * (weight + (k->apart ? 1 : 0));
  if (k->apart && target > weight) return cut->always;
  int32_t drawn =
      twice
          ? complete_wide(s, p, 1, cut->scale, p->sums.second.above[1], p->sums.second.all, target)
          : complete_wide(s, p, 1, p->q.scale, p->sums.first.above[1], p->sums.first.all, target);
  return k->last >= 0 && !up_to(p->l, drawn, k->last) ? k->last : drawn; /* by rounding */
}

pe_search_kept pe_search_wide(pe_list_space *s, const pe_list *l, const pe_search_cut *cut) {
  pass p = {.l = l, .q = {.top = l->top, .scale = 1, .other = 1}};
  pe_search_kept k = {.last = -1, .drawn = -1};
  bool at_low, cuts = cut->count || cut->reach < 1;
  p.q.centred = l->by_centre, p.q.centre = l->centre;
  p.q.kind = cut->count ? PE_SCAN_COUNT : cut->moments ? PE_SCAN_MOMENT : PE_SCAN_WEIGHT;
  if (cut->draws && !cuts && cut->low == -INFINITY)
    p.q.scale = cut->scale; /* nothing depends on weights of scale 1 */
  else if (cut->draws && cut->scale != 1)
    p.q.kind = PE_SCAN_TWICE, p.q.other = cut->scale;
  p.q.bands = cut->draws ? 2 : 1;
  if (!s->samples) take_sample(s, l, cut->scale, cut->count);
  k.expected = plan(s, &p, cut, &at_low);
  if (cut->count) s->samples = 0; /* a search for weights takes another one */
  p.sums = pe_list_tally(s, l, p.q);
  double first = p.sums.first.all, second = p.sums.second.all;
  double target = cut->count ? cut->count : cut->reach * first;
  if (l->whole && !cut->count && p.q.scale == 1) s->total = first;
  if (cuts && target < first && !(at_low && p.sums.first.above[0] <= target)) {
    k.last = complete_wide(s, &p, 0, cut->count ? 0 : 1, p.sums.first.above[0], first, target);
    at_low = l->x[k.last] < cut->low;
    if (!at_low) sum_first(s, &p, k.last, &first, &second);
  }
  if (at_low) {
    k.last = -1;
    if (p.q.band[0].high != cut->low) { /* the sample was wrong about it */
      p.q.band[0] = (pe_scan_band){cut->low, cut->low};
      p.sums = pe_list_tally(s, l, p.q);
    }
    first = p.sums.first.above[0], second = p.sums.second.above[0];
  }
  k.apart = cut->always >= 0 && k.last >= 0 && !up_to(l, cut->always, k.last);
  if (cut->draws) k.drawn = draw(s, &p, cut, &k, p.q.kind == PE_SCAN_TWICE ? second : first);
  k.total = first + (k.apart ? 1 : 0), k.moment = second;
  return k;
}

pe_scan_band pe_search_band(pe_list_space *s, const pe_list *l, int32_t count) {
  const pe_search_cut cut = {.count = count, .low = -INFINITY, .always = -1};
  pass p = {.l = l, .q = {.kind = PE_SCAN_COUNT, .top = l->top, .scale = 1}};
  bool at_low;
  take_sample(s, l, 1, true);
  plan(s, &p, &cut, &at_low);
  s->samples = 0; /* a search for weights takes another one */
  return p.q.band[0];
}

float pe_search_peak(pe_list_space *s, const float *peak, int32_t count) {
  int32_t n = pe_list_peaks(s->n);
  if (count > n) return -FLT_MAX;
  const pe_list all = {.x = peak, .n = n};
  return peak[pe_search_packed(s, &all, peak, NULL, count, NULL)];
}
