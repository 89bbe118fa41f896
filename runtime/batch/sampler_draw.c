/* sampler_draw.c - see sampler_draw.h. */
#include "runtime/batch/sampler_draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
  FEW = 48,                  /* to sort them costs about as much as another pass */
  SAMPLE = 2048,             /* tokens of a sample: with more, taking it costs more than it saves */
  HEAVY = 2048,              /* a token with this part of the weight is in every sample */
  GROUP = 16,                /* neighbours in a sample: they share a line of the cache */
  MANY = HEAVY + 2 * SAMPLE, /* longer lists are sampled; a sample never is as long */
};

/* ---- scratch ------------------------------------------------------------------------------- */

void pe_draw_space_close(pe_draw_space *s) {
  pe_free(s->moment);
  pe_free(s->part_sum);
  pe_free(s->sum);
  pe_free(s->sample_weight);
  pe_free(s->sample_key);
  pe_free(s->index);
  pe_free(s->part_index);
  pe_free(s->part_key);
  pe_free(s->part_weight);
  pe_free(s->key);
  pe_free(s->weight);
  pe_free(s->id);
  pe_free(s->x);
}

pe_status pe_draw_space_open(pe_draw_space *s, int32_t vocabulary, pe_error *err) {
  size_t n = (size_t)vocabulary, blocks = (n + PE_SCAN_BLOCK - 1) / PE_SCAN_BLOCK;
  *s = (pe_draw_space){.scan = pe_scan_best(), .n = vocabulary};
  s->x = pe_calloc(n, sizeof *s->x);
  s->id = pe_calloc(n, sizeof *s->id);
  s->weight = pe_calloc(n, sizeof *s->weight);
  s->key = pe_calloc(n, sizeof *s->key);
  s->part_weight = pe_calloc(n, sizeof *s->part_weight);
  s->part_key = pe_calloc(n, sizeof *s->part_key);
  s->part_index = pe_calloc(n, sizeof *s->part_index);
  s->index = pe_calloc(n, sizeof *s->index);
  s->sample_key = pe_calloc(MANY, sizeof *s->sample_key);
  s->sample_weight = pe_calloc(MANY, sizeof *s->sample_weight);
  s->sum = pe_calloc(blocks, sizeof *s->sum);
  s->part_sum = pe_calloc(blocks, sizeof *s->part_sum);
  s->moment = pe_calloc(blocks, sizeof *s->moment);
  if (s->x && s->id && s->weight && s->key && s->part_weight && s->part_key && s->part_index &&
      s->index && s->sample_key && s->sample_weight && s->sum && s->part_sum && s->moment)
    return PE_OK;
  return pe_nomem(err, "sampler");
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

int32_t pe_draw_best(pe_draw_space *s, const float *x, int32_t k) {
  pe_draw_candidate *h = s->heap;
  int32_t count = 0, i = 0, n = s->n;
  if (k > PE_DRAW_HEAP) k = PE_DRAW_HEAP;
  for (; i < n && count < k; i++)
    if (x[i] > -INFINITY) h[count++] = (pe_draw_candidate){x[i], i};
  for (int32_t j = count / 2; j-- > 0;) sift(h, count, j);
  while (count && i < n) { /* ids grow, so an equal logit never wins */
    i += (int32_t)s->scan->find(x + i, n - i, nextafterf(h[0].logit, INFINITY));
    if (i == n) break;
    h[0] = (pe_draw_candidate){x[i], i};
    sift(h, count, 0);
    i++;
  }
  return count;
}

pe_draw_candidate pe_draw_pop(pe_draw_space *s, int32_t *count) {
  pe_draw_candidate worst = s->heap[0];
  s->heap[0] = s->heap[--*count];
  sift(s->heap, *count, 0);
  return worst;
}

/* ---- lists --------------------------------------------------------------------------------- */

typedef struct list {
  const float *x;
  const int32_t *id; /* NULL: ids are indices */
  int32_t n;
  float top;      /* its highest logit */
  float lowest;   /* no logit is lower */
  bool by_rank;   /* the draw follows the order of the tokens, else that of the list */
  bool by_centre; /* that order is by the distance to `centre`, else by logit */
  float centre;
} list;

static int32_t id_at(const list *l, int32_t i) { return l->id ? l->id[i] : i; }

typedef struct stretch { /* of a list up to `end`: the logits to keep */
  int32_t end;
  float low, high;
} stretch;

static void keep(pe_draw_space *s, list *l, const stretch *part, int parts) {
  int32_t from = 0, count = 0, *index = l->id ? s->index : s->id;
  for (int i = 0; i < parts; from = part[i++].end)
    count += (int32_t)s->scan->gather(l->x + from, part[i].end - from, part[i].low, part[i].high,
                                      from, index + count, s->x + count);
  if (l->id)
    for (int32_t i = 0; i < count; i++) s->id[i] = s->id[index[i]];
  l->x = s->x, l->id = s->id, l->n = count;
}

static double add(const float *x, int32_t n) {
  double total = 0;
  for (int32_t i = 0; i < n; i++) total += (double)x[i];
  return total;
}

static int32_t blocks(int32_t n) { return (n + PE_SCAN_BLOCK - 1) / PE_SCAN_BLOCK; }

/* Sums of weights to s->sum and, unless it is NULL, weights to `weight`. Returns the total. */
static double weigh(pe_draw_space *s, const list *l, float scale, float *weight) {
  s->scan->weigh(l->x, l->n, l->top, scale, weight, s->sum, NULL);
  return add(s->sum, blocks(l->n));
}

double pe_draw_total(pe_draw_space *s, const float *x, float top) {
  return weigh(s, &(list){.x = x, .n = s->n, .top = top}, 1, NULL);
}

/* ---- the search ---------------------------------------------------------------------------- */

/* Which token completes the weight `target`? Higher keys come first; of equal keys those at or
 * above the centre, if there is one, and then the lower index. */
typedef struct search {
  const list *l;
  const float *key, *weight; /* of the list; weight NULL: every token counts 1 */
  double target, total;      /* the weight to complete, and that of all */
  float floor;               /* keys below have no weight */
  float scale;               /* keys are logits with weights of this scale; 0: they are not */
  double reached;            /* a result: the weight up to the token that was found */
} search;

static int32_t complete(pe_draw_space *s, search *q);

/* Weights of this scale end 87 below the top (scan.h): keys below this one have none. */
static float lowest_key(const list *l, float scale) {
  float low = l->top - 87 / scale;
  return l->by_centre ? -fmaxf(l->centre - low, l->top - l->centre) : low;
}

typedef struct part { /* the tokens that are left; all before them weigh `before` */
  const float *key, *weight;
  const int32_t *index; /* NULL: all */
  int32_t n;
  double before;
} part;

static int32_t index_at(const part *a, int32_t i) { return a->index ? a->index[i] : i; }
static float weight_at(const part *a, int32_t i) { return a->weight ? a->weight[i] : 1; }

static bool left_of_centre(const search *q, int32_t index) {
  return q->l->by_centre && q->l->x[index] < q->l->centre;
}

/* All keys are equal; there is a centre. */
static int32_t search_equal(search *q, const part *a) {
  int32_t last = 0;
  q->reached = a->before;
  for (int left = 0; left < 2; left++)
    for (int32_t i = 0; i < a->n && q->reached < q->target; i++)
      if (left_of_centre(q, index_at(a, i)) == left) {
        q->reached += (double)weight_at(a, i);
        last = i;
      }
  return index_at(a, last);
}

static bool ahead(const search *q, const part *a, int32_t i, int32_t j) {
  if (a->key[i] != a->key[j]) return a->key[i] > a->key[j];
  bool left = left_of_centre(q, index_at(a, i));
  if (left != left_of_centre(q, index_at(a, j))) return !left;
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

/* Four thresholds, the highest first; the last one has all weight at or above it. */
static void thresholds(const search *q, float low, float high, float at[PE_SCAN_STEPS]) {
  if (low < q->floor) low = q->floor < high ? q->floor : high;
  float next = nextafterf(low, INFINITY);
  double span = (double)high - (double)low;
  for (int j = 0; j < PE_SCAN_STEPS; j++) {
    at[j] = (float)((double)high - span * (j + 1) / PE_SCAN_STEPS);
    if (at[j] < next) at[j] = next;
  }
  at[PE_SCAN_STEPS - 1] = low;
}

/* Keys in order of the logits have weights of their own; others look theirs up. */
static void narrow(pe_draw_space *s, const search *q, part *a, float low, float high) {
  int32_t *index = a->index ? s->index : s->part_index;
  int32_t count = (int32_t)s->scan->gather(a->key, a->n, low, high, 0, index, s->part_key);
  if (a->weight && q->scale > 0)
    s->scan->weigh(s->part_key, count, q->l->top, q->scale, s->part_weight, s->part_sum, NULL);
  else if (a->weight)
    for (int32_t i = 0; i < count; i++) s->part_weight[i] = a->weight[index[i]];
  if (a->index)
    for (int32_t i = 0; i < count; i++) s->part_index[i] = s->part_index[index[i]];
  a->key = s->part_key, a->weight = a->weight ? s->part_weight : NULL;
  a->index = s->part_index, a->n = count;
}

/* Heavy tokens, all of them, and every stride-th group of the others with its weight multiplied.
 * Returns their number, and in *heavy how many are heavy. */
static int32_t take_sample(pe_draw_space *s, const search *q, int32_t *heavy) {
  int32_t n = q->l->n, stride = n / SAMPLE, count = 0;
  float limit = (float)(q->total / HEAVY), *key = s->sample_key, *weight = s->sample_weight;
  if (q->weight && limit <= 1) /* no weight is above 1 */
    count = (int32_t)s->scan->gather(q->weight, n, limit, INFINITY, 0, s->index, weight);
  *heavy = count;
  for (int32_t i = 0; i < count; i++) key[i] = q->key[s->index[i]];
  for (int32_t i = 0; i + GROUP <= n; i += GROUP * stride, count += GROUP)
    for (int32_t j = 0; j < GROUP; j++) {
      float w = q->weight ? q->weight[i + j] : 1;
      key[count + j] = q->key[i + j];
      weight[count + j] = w < limit || !q->weight ? w * (float)stride : 0;
    }
  return count;
}

/* Thresholds with few tokens between the first two, and most likely the answer: the sample's
 * estimate and three standard deviations to each side. The total is known, so the weight above a
 * key can be estimated from either side; the side of smaller variance counts. A wrong guess costs
 * time, nothing else. */
static void guess(pe_draw_space *s, const search *q, float at[PE_SCAN_STEPS]) {
  int32_t heavy, n = take_sample(s, q, &heavy);
  const float *key = s->sample_key, *weight = s->sample_weight;
  list l = {.x = key, .n = n};
  double total = add(weight, n), above = 0, below = 0, middle = q->target * total / q->total;
  search sub = {&l, key, weight, middle, total, q->floor, 0, 0};
  float centre = key[complete(s, &sub)];
  for (int32_t i = heavy; i < n; i++) {
    double square = (double)weight[i] * (double)weight[i];
    above += key[i] >= centre ? square : 0;
    below += key[i] < centre ? square : 0;
  }
  middle = below < above ? total - (q->total - q->target) : q->target;
  double margin = 3 * sqrt(below < above ? below : above);
  for (int j = 0; j < 2; j++) {
    sub.target = j ? middle + margin : middle - margin;
    at[j] = key[complete(s, &sub)];
  }
  at[0] = nextafterf(at[0], INFINITY);
  at[2] = at[1];
  at[3] = -FLT_MAX;
}

/* The token at `target` in a long run of equal keys, and so of equal weights. */
static int32_t nth_equal(pe_draw_space *s, search *q, const part *a, float key) {
  int32_t count = (int32_t)s->scan->gather(a->key, a->n, key, key, 0, s->index, s->part_key);
  double each = (double)weight_at(a, s->index[0]), steps = ceil((q->target - a->before) / each) - 1;
  int32_t i = steps > 0 ? (steps < count - 1 ? (int32_t)steps : count - 1) : 0;
  q->reached = a->before + each * (i + 1);
  return index_at(a, s->index[i]);
}

static int32_t complete(pe_draw_space *s, search *q) {
  part a = {q->key, q->weight, NULL, q->l->n, 0};
  float at[PE_SCAN_STEPS], low, high;
  double mass[PE_SCAN_STEPS];
  while (a.n > FEW) {
    if (a.n > MANY && !a.index) {
      guess(s, q, at);
      high = INFINITY;
    } else {
      high = s->scan->range(a.key, a.n, &low, NULL);
      if (low == high) return q->l->by_centre ? search_equal(q, &a) : nth_equal(s, q, &a, high);
      thresholds(q, low, high, at);
    }
    s->scan->mass(a.key, a.weight, a.n, at, mass);
    double all = a.before + mass[PE_SCAN_STEPS - 1];
    if (q->target > all) q->target = all; /* they differ by rounding only */
    int j = 0;
    while (j < PE_SCAN_STEPS - 1 && (mass[j] == 0 || a.before + mass[j] < q->target)) j++;
    if (j) {
      high = nextafterf(at[j - 1], -INFINITY);
      a.before += mass[j - 1];
    }
    if (at[j] == high && !q->l->by_centre) return nth_equal(s, q, &a, high);
    narrow(s, q, &a, at[j], high);
  }
  return search_few(q, &a);
}

/* ---- filters ------------------------------------------------------------------------------- */

/* Keeps the best tokens up to the one at `last`. */
static void keep_best(pe_draw_space *s, list *l, int32_t last) {
  float low = l->x[last];
  keep(s, l, (stretch[]){{last + 1, low, INFINITY}, {l->n, nextafterf(low, INFINITY), INFINITY}},
       2);
}

/* sorted: the list must be in the order of ids, for filters that look at ties. */
static void top_k(pe_draw_space *s, list *l, int32_t k, bool sorted) {
  if (k > PE_DRAW_HEAP) {
    if (k >= l->n) return; /* after -infinity was left out */
    keep_best(s, l, complete(s, &(search){l, l->x, NULL, k, l->n, -INFINITY, 0, 0}));
    return;
  }
  l->n = pe_draw_best(s, l->x, k);
  for (int32_t i = 0; i < l->n; i++) {
    int32_t at = i;
    for (; sorted && at > 0 && s->id[at - 1] > s->heap[i].id; at--)
      s->x[at] = s->x[at - 1], s->id[at] = s->id[at - 1];
    s->x[at] = s->heap[i].logit, s->id[at] = s->heap[i].id;
  }
  l->x = s->x, l->id = s->id;
}

static float at_or_above(double x) {
  float y = (float)x;
  return (double)y < x ? nextafterf(y, INFINITY) : y;
}

/* The filters of the best tokens. `u`: the last filter draws at once, at temperature 1, and returns
 * the token's index; otherwise u is negative, and so is the result. */
static int32_t top_p_min_p(pe_draw_space *s, list *l, const pe_sampling *p, double u) {
  double total = 0, all = 0;
  float low = -INFINITY;
  if (p->min_p > 0) {
    low = at_or_above((double)l->top + log((double)p->min_p));
    low = low < l->top ? low : l->top;
  }
  bool drops = low > l->lowest;
  if (p->top_p < 1) total = all = weigh(s, l, 1, drops ? NULL : s->weight);
  if (drops) {
    keep(s, l, &(stretch){l->n, low, INFINITY}, 1);
    if (p->top_p < 1) all = weigh(s, l, 1, s->weight);
  }
  if (p->top_p >= 1) return -1;
  search q = {l, l->x, s->weight, (double)p->top_p * total, all, lowest_key(l, 1), 1, all};
  int32_t last = -1, drawn; /* last: the worst to keep, unless min_p keeps less */
  if (q.target <= all) {
    last = complete(s, &q);
    if (u < 0) keep_best(s, l, last);
  }
  if (u < 0) return -1;
  q.target = (1 - u) * q.reached;
  drawn = complete(s, &q);
  if (last < 0 || l->x[drawn] > l->x[last]) return drawn;
  return l->x[drawn] < l->x[last] || drawn > last ? last : drawn; /* by rounding */
}

/* The order of floats as integers. */
static int32_t rank_of(float x) {
  int32_t i;
  memcpy(&i, &x, sizeof i);
  return i < 0 ? INT32_MIN - i : i;
}

static float of_rank(int32_t i) {
  float x;
  i = i < 0 ? INT32_MIN - i : i;
  memcpy(&x, &i, sizeof x);
  return x;
}

/* The logit farthest from the centre, on one side of it, whose key is at least `key`, or above it
 * if `strict`. The centre counts as right. */
static float edge(float centre, float key, bool left, bool strict) {
  int64_t in = rank_of(centre), out = left ? rank_of(-FLT_MAX) - 1 : (int64_t)rank_of(FLT_MAX) + 1;
  if (strict && key == 0) return left ? centre : nextafterf(centre, -INFINITY);
  while (in - out > 1 || out - in > 1) {
    int64_t mid = in + (out - in) / 2;
    float here = -fabsf(of_rank((int32_t)mid) - centre);
    if (strict ? here > key : here >= key)
      in = mid;
    else
      out = mid;
  }
  return of_rank((int32_t)in);
}

/* Sums of weights and of weights times exponents give the entropy: log(total) - moment / total. The
 * surprise of a token minus the entropy is its distance to the logit `centre`. */
static void typical(pe_draw_space *s, list *l, const pe_sampling *p) {
  int32_t best = (int32_t)s->scan->find(l->x, l->n, l->top);
  s->scan->weigh(l->x, l->n, l->top, 1, s->weight, s->sum, s->moment);
  double total = add(s->sum, blocks(l->n)), moment = add(s->moment, blocks(l->n));
  l->by_rank = l->by_centre = true;
  l->centre = (float)((double)l->top + moment / total);
  s->scan->nearness(l->x, l->n, l->centre, s->key);
  float floor = lowest_key(l, 1);
  int32_t last = complete(
      s, &(search){l, s->key, s->weight, (double)p->typical_p * total, total, floor, 0, 0});
  float key = s->key[last], c = l->centre;
  bool left = left_of_centre(&(search){.l = l}, last);
  stretch first = {last + 1, edge(c, key, true, !left), edge(c, key, false, false)};
  stretch rest = {l->n, edge(c, key, true, true), edge(c, key, false, !left)};
  stretch alone = {best + 1, -INFINITY, INFINITY};
  if (first.high >= l->top)
    keep(s, l, (stretch[]){first, rest}, 2);
  else if (best <= last)
    keep(s, l, (stretch[]){{best, first.low, first.high}, alone, first, rest}, 4);
  else
    keep(s, l, (stretch[]){first, {best, rest.low, rest.high}, alone, rest}, 4);
}

/* The lowest logit whose weight is at least `least`; above the top if there is none. */
static float lowest_of_weight(float top, double least) {
  int64_t out = (int64_t)rank_of(-FLT_MAX) - 1, in = (int64_t)rank_of(top) + 1;
  while (in - out > 1) {
    int64_t mid = out + (in - out) / 2;
    if (exp((double)of_rank((int32_t)mid) - (double)top) < least)
      out = mid;
    else
      in = mid;
  }
  return of_rank((int32_t)in);
}

/* Of the tokens at or above the threshold, only the least likely stays. */
static void xtc(pe_draw_space *s, list *l, const pe_sampling *p) {
  float low = lowest_of_weight(l->top, (double)p->xtc_threshold * weigh(s, l, 1, NULL));
  int32_t count =
      (int32_t)s->scan->gather(l->x, l->n, low, INFINITY, 0, s->part_index, s->part_key);
  if (count < 2) return;
  int32_t stays = 0;
  for (int32_t i = 1; i < count; i++) {
    float a = s->part_key[i], b = s->part_key[stays];
    int32_t ia = id_at(l, s->part_index[i]), ib = id_at(l, s->part_index[stays]);
    if (a < b || (a == b && ia > ib)) stays = i;
  }
  int32_t at = s->part_index[stays];
  float below = nextafterf(low, -INFINITY);
  keep(s, l,
       (stretch[]){{at, -INFINITY, below}, {at + 1, -INFINITY, INFINITY}, {l->n, -INFINITY, below}},
       3);
  l->top = s->scan->range(l->x, l->n, &low, NULL);
}

/* ---- the draw ------------------------------------------------------------------------------ */

/* In the order of the list: the block first, then the token in it. */
static int32_t draw_in_list(pe_draw_space *s, const list *l, float scale, double u) {
  double at = u * weigh(s, l, scale, NULL);
  int32_t b = 0, n = blocks(l->n), last = 0;
  while (b < n && (at -= (double)s->sum[b]) >= 0) b++;
  if (b == n) /* rounding left a rest */
    return id_at(l, (int32_t)s->scan->find(l->x, l->n, l->top));
  at += (double)s->sum[b];
  int32_t from = b * PE_SCAN_BLOCK,
          count = l->n - from < PE_SCAN_BLOCK ? l->n - from : PE_SCAN_BLOCK;
  s->scan->weigh(l->x + from, count, l->top, scale, s->weight, s->sum, NULL);
  for (int32_t i = 0; i < count; i++) {
    if (s->weight[i] > 0) last = i;
    if ((at -= (double)s->weight[i]) < 0) break;
  }
  return id_at(l, from + last);
}

/* Best first: u counts from the worst. */
static int32_t draw_by_rank(pe_draw_space *s, const list *l, float scale, double u) {
  double total = weigh(s, l, scale, s->weight);
  float floor = lowest_key(l, scale);
  if (l->by_centre) s->scan->nearness(l->x, l->n, l->centre, s->key);
  search q = {l,     l->by_centre ? s->key : l->x, s->weight, (1 - u) * total, total,
              floor, l->by_centre ? 0 : scale,     0};
  return id_at(l, complete(s, &q));
}

int32_t pe_draw(pe_draw_space *s, const pe_sampling *p, const float *x, int32_t best, float lowest,
                int64_t position) {
  list l = {.x = x, .n = s->n, .top = x[best], .lowest = lowest};
  double u = pe_sampler_uniform(p->seed, position, 0);
  bool cuts = p->top_p < 1 || p->min_p > 0, types = p->typical_p < 1;
  bool limits = p->top_k && p->top_k < s->n;
  bool excludes = pe_sampler_uniform(p->seed, position, 1) < (double)p->xtc_probability;
  l.by_rank = cuts || types;
  bool heap = limits && p->top_k <= PE_DRAW_HEAP; /* leaves out -infinity */
  if (lowest == -INFINITY && !heap && (limits || cuts || types || excludes))
    keep(s, &l, &(stretch){l.n, -FLT_MAX, INFINITY}, 1);
  if (limits) top_k(s, &l, p->top_k, l.by_rank);
  bool at_once = p->top_p < 1 && !types && !excludes && p->temperature == 1;
  int32_t drawn = cuts ? top_p_min_p(s, &l, p, at_once ? u : -1) : -1;
  if (drawn >= 0) return id_at(&l, drawn);
  if (types) typical(s, &l, p);
  if (excludes) xtc(s, &l, p);
  /* Beyond these scales temperatures draw from the best or from all tokens alike. */
  double scale = 1 / (double)p->temperature;
  scale = scale < (double)FLT_MIN ? (double)FLT_MIN : scale > 1e30 ? 1e30 : scale;
  return l.by_rank ? draw_by_rank(s, &l, (float)scale, u) : draw_in_list(s, &l, (float)scale, u);
}
