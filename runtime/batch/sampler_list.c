/* sampler_list.c - see sampler_list.h. */
#include "runtime/batch/sampler_list.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const pe_scan_span everything = {-FLT_MAX, INFINITY}; /* -infinity is never left */
static const pe_scan_span nothing = {INFINITY, -INFINITY};

/* ---- scratch ------------------------------------------------------------------------------- */

typedef enum extent { TOKENS, BLOCKS, SUMS, PIECES, SAMPLES } extent;

/* In units of four bytes. */
static const struct {
  size_t offset;
  extent extent;
} arrays[] = {
    {offsetof(pe_list_space, x), TOKENS},
    {offsetof(pe_list_space, id), TOKENS},
    {offsetof(pe_list_space, weight), TOKENS},
    {offsetof(pe_list_space, key), TOKENS},
    {offsetof(pe_list_space, band), TOKENS},
    {offsetof(pe_list_space, band_key), TOKENS},
    {offsetof(pe_list_space, band_weight), TOKENS},
    {offsetof(pe_list_space, band_index), TOKENS},
    {offsetof(pe_list_space, part_weight), TOKENS},
    {offsetof(pe_list_space, part_key), TOKENS},
    {offsetof(pe_list_space, part_index), TOKENS},
    {offsetof(pe_list_space, index), TOKENS},
    {offsetof(pe_list_space, sum), BLOCKS},
    {offsetof(pe_list_space, sums), SUMS},
    {offsetof(pe_list_space, found[0].index), TOKENS},
    {offsetof(pe_list_space, found[0].value), TOKENS},
    {offsetof(pe_list_space, found[0].count), PIECES},
    {offsetof(pe_list_space, found[1].index), TOKENS},
    {offsetof(pe_list_space, found[1].value), TOKENS},
    {offsetof(pe_list_space, found[1].count), PIECES},
    {offsetof(pe_list_space, sample), SAMPLES},
    {offsetof(pe_list_space, sample_key), SAMPLES},
    {offsetof(pe_list_space, sample_first), SAMPLES},
    {offsetof(pe_list_space, sample_second), SAMPLES},
    {offsetof(pe_list_space, sample_square), SAMPLES},
};
enum { ARRAYS = sizeof arrays / sizeof *arrays };

static void **array_at(pe_list_space *s, int i) { return (void **)((char *)s + arrays[i].offset); }

void pe_list_space_close(pe_list_space *s) {
  for (int i = 0; i < ARRAYS; i++) pe_free(*array_at(s, i));
}

pe_status pe_list_space_open(pe_list_space *s, int32_t vocabulary, pe_error *err) {
  size_t n = (size_t)vocabulary;
  /* A part of a list starts a block and a piece of its own. */
  const size_t blocks = n / PE_SCAN_BLOCK + PE_LIST_PARTS;
  const size_t size[] = {n + PE_SCAN_LANES, blocks, blocks * sizeof(pe_scan_sums) / 4,
                         n / PE_PASS_PIECE + PE_LIST_PARTS, PE_LIST_WIDE};
  *s = (pe_list_space){.scan = pe_scan_best(), .n = vocabulary};
  for (int i = 0; i < ARRAYS; i++)
    if (!(*array_at(s, i) = pe_calloc(size[arrays[i].extent], 4))) return pe_nomem(err, "sampler");
  return PE_OK;
}

/* ---- lists --------------------------------------------------------------------------------- */

static void set_all(pe_list *l) {
  l->part[0] = (pe_list_part){l->n, everything};
  l->parts = 1;
}

pe_list pe_list_of(pe_list_space *s, const pe_list_row *row) {
  pe_list l = {.x = row->x, .peak = row->peak, .n = s->n, .top = row->x[row->best]};
  set_all(&l);
  l.span = everything;
  l.wide = l.whole = s->n > PE_LIST_WIDE;
  s->samples = 0, s->total = 0;
  if (!l.wide) pe_list_pack(s, &l);
  return l;
}

static pe_scan_span common(pe_scan_span a, pe_scan_span b) {
  return (pe_scan_span){a.low > b.low ? a.low : b.low, a.high < b.high ? a.high : b.high};
}

/* From `from` up to `end`, without the stretches whose peaks are too low. */
static int32_t gather_high(const pe_list_space *s, const pe_list *l, int32_t from, int32_t end,
                           const pe_scan_span span[2], int32_t *index, float *value) {
  float low = span[0].low < span[1].low ? span[0].low : span[1].low;
  int32_t count = 0;
  while (from < end) {
    int32_t b = from / PE_SCAN_PEAK, last = (end - 1) / PE_SCAN_PEAK;
    bool high = l->peak[b] >= low;
    do b++;
    while (b <= last && (l->peak[b] >= low) == high);
    int32_t to = b > last ? end : b * PE_SCAN_PEAK;
    if (high)
      count += (int32_t)s->scan->gather(l->x + from, to - from, span, from, index + count,
                                        value + count);
    from = to;
  }
  return count;
}

int32_t pe_list_gather(const pe_list_space *s, const pe_list *l, const pe_scan_span span[2],
                       int32_t *index, float *value) {
  int32_t from = 0, count = 0;
  for (int i = 0; i < l->parts; from = l->part[i++].end) {
    const pe_scan_span both[2] = {common(span[0], l->part[i].span),
                                  common(span[1], l->part[i].span)};
    if (l->wide)
      count += gather_high(s, l, from, l->part[i].end, both, index + count, value + count);
    else
      count += (int32_t)s->scan->gather(l->x + from, l->part[i].end - from, both, from,
                                        index + count, value + count);
  }
  return count;
}

/* Where a part of a list has its tokens: it starts at the index `from` and with this piece. */
static pe_pass_found found_at(const pe_pass_found *f, int32_t from, int32_t piece) {
  return (pe_pass_found){f->index + from, f->value + from, f->count + piece};
}

int32_t pe_list_band(const pe_list_space *s, const pe_list *l, int band, int32_t *index,
                     float *value) {
  int32_t from = 0, piece = 0, count = 0;
  for (int i = 0; i < l->parts; from = l->part[i++].end) {
    const int32_t n = l->part[i].end - from;
    const pe_pass_found part = found_at(&s->found[band], from, piece);
    count += pe_pass_join(&part, n, index + count, value + count);
    piece += pe_pass_pieces(n);
  }
  return count;
}

void pe_list_pack(pe_list_space *s, pe_list *l) {
  const pe_scan_span all[2] = {everything, nothing};
  l->n = pe_list_gather(s, l, all, l->id ? s->index : s->id, s->x);
  if (l->id)
    for (int32_t i = 0; i < l->n; i++) s->id[i] = s->id[s->index[i]];
  l->x = s->x, l->id = s->id, l->wide = l->whole = false;
  set_all(l);
}

pe_list pe_list_few(pe_list_space *s, int32_t count) {
  pe_list l = {.x = s->x, .id = s->id, .n = count, .span = everything};
  float lowest;
  set_all(&l);
  s->samples = 0, s->total = 0;
  pe_list_pack(s, &l);
  if (l.n) l.top = s->scan->range(l.x, l.n, &lowest);
  return l;
}

void pe_list_keep(pe_list_space *s, pe_list *l, const pe_list_part *part, int parts) {
  pe_list_part both[PE_LIST_PARTS];
  int n = 0;
  for (int i = 0, j = 0; i < l->parts && j < parts; n++) {
    int32_t a = l->part[i].end, b = part[j].end;
    both[n] = (pe_list_part){a < b ? a : b, common(l->part[i].span, part[j].span)};
    i += a <= b, j += b <= a;
  }
  for (int i = 0; i < n; i++) l->part[i] = both[i];
  l->parts = n, l->whole = false;
  if (!l->wide) pe_list_pack(s, l);
}

double pe_list_weigh(pe_list_space *s, const pe_list *l, float scale, float *weight) {
  double total = 0;
  float *sum = s->sum;
  int32_t from = 0;
  for (int i = 0; i < l->parts; from = l->part[i++].end) {
    int32_t n = l->part[i].end - from;
    pe_pass_weigh(pe_list_pass(s), l->x + from, n, l->part[i].span, l->top, scale,
                  weight ? weight + from : NULL, sum);
    for (int32_t k = 0; k < n; k += PE_SCAN_BLOCK) total += (double)*sum++;
  }
  if (l->whole && scale == 1) s->total = total;
  return total;
}

void pe_list_add(const pe_list_space *s, const float *x, int32_t n, const pe_scan_query *q,
                 pe_scan_tally *sums) {
  pe_pass_tally(pe_list_pass(s), x, n, q, s->sums, 0, NULL);
  pe_scan_add(s->sums, pe_scan_blocks(n), sums);
}

pe_scan_tally pe_list_tally(const pe_list_space *s, const pe_list *l, pe_scan_query q) {
  pe_scan_tally sums = {{{0}, 0}, {{0}, 0}};
  int32_t from = 0, piece = 0;
  for (int i = 0; i < l->parts; from = l->part[i++].end) {
    const int32_t n = l->part[i].end - from;
    const pe_pass_found found[2] = {found_at(&s->found[0], from, piece),
                                    found_at(&s->found[1], from, piece)};
    q.span = l->part[i].span;
    pe_pass_tally(pe_list_pass(s), l->x + from, n, &q, s->sums, from, found);
    pe_scan_add(s->sums, pe_scan_blocks(n), &sums);
    piece += pe_pass_pieces(n);
  }
  return sums;
}
