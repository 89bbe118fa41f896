/* kv.c - see kv.h. */
#include "runtime/cache/kv.h"

#include "kernels/kv_row.h"

#include <assert.h>
#include <string.h>

enum {
  BLOCK = 32, /* tokens: a smaller block means longer tables, a larger one more unused rows at the
                 end of each sequence and fewer tokens that two prompts can share */
  MOST_BLOCK = 4096,
  ALIGN = 64 /* bytes of a cache line */
};

/* ---- types and sizes ------------------------------------------------------------------------- */

static const int32_t bits_of[PE_KV_TYPES] = {
    [PE_KV_F32] = 32, [PE_KV_F16] = 16, [PE_KV_Q8] = 8, [PE_KV_Q4] = 4};

int32_t pe_kv_bits(pe_kv_type type) { return bits_of[type]; }

pe_status pe_kv_type_of_bits(int32_t bits, pe_kv_type *out, pe_error *err) {
  for (pe_kv_type t = PE_KV_F32; t < PE_KV_TYPES; t++)
    if (bits_of[t] == bits) {
      *out = t;
      return PE_OK;
    }
  return pe_fail_field(err, PE_EARG, "kv_bits", "kv_bits must be 32, 16, 8 or 4, got %d", bits);
}

/* Of one token in one layer of a group. */
static uint64_t row_bytes(pe_kv_type type, const pe_cache_group *c) {
  return (uint64_t)c->heads *
         ((uint64_t)pe_kv_row_bytes(type, c->key) + (uint64_t)pe_kv_row_bytes(type, c->value));
}

uint64_t pe_kv_token_bytes(const pe_graph *g, pe_kv_type type) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < g->group_count; i++)
    bytes += row_bytes(type, &g->group[i]) * (uint64_t)g->group[i].layers;
  return bytes;
}

uint64_t pe_kv_bytes(const pe_graph *g, pe_kv_type type, int64_t tokens) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < g->group_count; i++) {
    const pe_cache_group *c = &g->group[i];
    int64_t kept = c->window && c->window < tokens ? c->window : tokens;
    bytes += row_bytes(type, c) * (uint64_t)c->layers * (uint64_t)kept;
  }
  return bytes;
}

uint64_t pe_kv_group_token_bytes(const pe_kv *kv, int32_t group) {
  return kv->block_bytes[group] / (uint64_t)kv->block;
}

uint64_t pe_kv_seq_bytes(const pe_kv *kv, const pe_kv_seq *s) {
  uint64_t bytes = 0;
  for (int32_t g = 0; g < kv->graph->group_count; g++)
    for (int32_t i = s->gone[g]; i < s->count[g]; i++)
      if (s->table[g][i] >= 0) bytes += kv->block_bytes[g];
  return bytes;
}

/* Bytes of a block of one layer. which: 0 keys, 1 values. */
static uint64_t part_bytes(const pe_kv *kv, int32_t group, int which) {
  const pe_cache_group *c = &kv->graph->group[group];
  return (uint64_t)kv->block * (uint64_t)c->heads *
         (uint64_t)pe_kv_row_bytes(kv->type, which ? c->value : c->key);
}

/* ---- the pool -------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1); }

/* Of one layer in a block; both parts start on cache lines. */
static uint64_t layer_bytes(const pe_kv *kv, int32_t group) {
  return aligned(part_bytes(kv, group, 0)) + aligned(part_bytes(kv, group, 1));
}

static pe_status reserve_blocks(pe_kv *kv, pe_error *err) {
  uint64_t size = 0;
  for (int32_t i = 0; i < kv->graph->group_count; i++) {
    uint64_t bytes;
    kv->step[i] = layer_bytes(kv, i) * (uint64_t)kv->graph->group[i].layers;
    if (!pe_mul_size((uint64_t)kv->blocks, kv->step[i], &bytes) || bytes > INT64_MAX / 64)
      return pe_fail(err, PE_ELIMIT, "a KV cache of %d blocks of %llu bytes is too large",
                     kv->blocks, (unsigned long long)kv->step[i]);
    kv->at[i] = size, size += bytes;
  }
  pe_status rc = pe_buffer_reserve(size + ALIGN, &kv->memory, err);
  if (!rc) pe_buffer_large_pages(kv->memory);
  return rc;
}

static void place_layers(pe_kv *kv) {
  const pe_graph *g = kv->graph;
  for (size_t i = 0; i < g->layer_count; i++) {
    const int32_t group = g->layer[i].group;
    uint8_t *at =
        kv->memory->data + kv->at[group] + (uint64_t)g->layer[i].index * layer_bytes(kv, group);
    kv->layer[i] = (pe_kv_layer){.keys = at, .step = kv->step[group]};
    if (g->group[group].value) kv->layer[i].values = at + aligned(part_bytes(kv, group, 0));
  }
}

static pe_status open_groups(pe_kv *kv, pe_error *err) {
  for (int32_t i = 0; i < kv->graph->group_count; i++) {
    const pe_cache_group *c = &kv->graph->group[i];
    kv->block_bytes[i] = (uint64_t)kv->block * row_bytes(kv->type, c) * (uint64_t)c->layers;
    kv->free_list[i] = pe_calloc((size_t)kv->blocks, sizeof(int32_t));
    kv->refs[i] = pe_calloc((size_t)kv->blocks, sizeof(int32_t));
    kv->warm[i] = pe_calloc((size_t)kv->blocks, 1);
    if (!kv->free_list[i] || !kv->refs[i] || !kv->warm[i])
      return pe_nomem(err, "blocks of the KV cache");
    for (int32_t b = 0; b < kv->blocks; b++) kv->free_list[i][b] = kv->blocks - 1 - b;
    kv->free_count[i] = kv->blocks;
  }
  return PE_OK;
}

static pe_status check_options(const pe_kv_options *o, pe_kv *kv, pe_error *err) {
  const bool fast = o->precision == PE_FAST;
  pe_status rc = pe_kv_type_of_bits(o->bits ? o->bits : fast ? 16 : 32, &kv->type, err);
  if (rc) return rc;
  kv->backend = o->backend ? o->backend : "cpu", kv->precision = o->precision;
  kv->block = o->block ? o->block : fast ? PE_KV_PANEL : BLOCK;
  if (kv->block < 1 || kv->block > MOST_BLOCK || (kv->block & (kv->block - 1)))
    return pe_fail_field(err, PE_EARG, "kv_block",
                         "kv_block must be a power of two, at most %d, got %d", MOST_BLOCK,
                         o->block);
  if (o->tokens < 0 || o->sequences < 1 || o->tokens > (int64_t)INT32_MAX * kv->block)
    return pe_fail(err, PE_ELIMIT, "a KV cache of %lld tokens for %d sequences is out of range",
                   (long long)o->tokens, o->sequences);
  int64_t blocks = (o->tokens + kv->block - 1) / kv->block + o->sequences;
  if (blocks > INT32_MAX / 2)
    return pe_fail(err, PE_ELIMIT, "a KV cache can have at most %d blocks, %lld requested",
                   INT32_MAX / 2, (long long)blocks);
  kv->blocks = (int32_t)blocks;
  return PE_OK;
}

pe_status pe_kv_open(const pe_graph *g, const pe_kv_options *o, pe_kv **out, pe_error *err) {
  pe_kv *kv = pe_calloc(1, sizeof *kv);
  if (!kv) return pe_nomem(err, "KV cache");
  kv->graph = g;
  pe_status rc = check_options(o, kv, err);
  if (!rc && !(kv->layer = pe_calloc(g->layer_count + 1, sizeof *kv->layer)))
    rc = pe_nomem(err, "layers of the KV cache");
  if (!rc) rc = pe_names_open(&kv->names, err);
  if (!rc) rc = open_groups(kv, err);
  if (!rc) rc = reserve_blocks(kv, err);
  if (rc) {
    pe_kv_close(kv);
    return rc;
  }
  place_layers(kv);
  *out = kv;
  return rc;
}

void pe_kv_close(pe_kv *kv) {
  if (!kv) return;
  for (int i = 0; i < PE_GRAPH_GROUPS; i++)
    pe_free(kv->free_list[i]), pe_free(kv->refs[i]), pe_free(kv->warm[i]);
  pe_buffer_release(kv->memory);
  pe_names_close(kv->names);
  pe_free(kv->layer);
  pe_free(kv);
}

/* ---- single blocks --------------------------------------------------------------------------- */

static int32_t take_block(pe_kv *kv, int32_t group) {
  int32_t b = kv->free_list[group][--kv->free_count[group]];
  kv->refs[group][b] = 1, kv->warm[group][b] = 1;
  kv->used[group]++;
  return b;
}

void pe_kv_retain_block(pe_kv *kv, int32_t group, int32_t block) {
  if (block >= 0) kv->refs[group][block]++;
}

void pe_kv_release_block(pe_kv *kv, int32_t group, int32_t block) {
  if (block < 0 || --kv->refs[group][block]) return;
  kv->free_list[group][kv->free_count[group]++] = block;
  kv->used[group]--;
}

int32_t pe_kv_block_refs(const pe_kv *kv, int32_t group, int32_t block) {
  return block < 0 ? 0 : kv->refs[group][block];
}

int64_t pe_kv_discard(pe_kv *kv) {
  assert(!kv->busy);
  int64_t discarded = 0;
  for (int32_t g = 0; g < kv->graph->group_count; g++)
    for (int32_t b = 0, from; b < kv->blocks; b++) {
      for (from = b; b < kv->blocks && kv->warm[g][b] && !kv->refs[g][b]; b++) kv->warm[g][b] = 0;
      /* Neighbours go together: the pages of a range are whole more often than a block's. */
      if (b > from)
        pe_buffer_discard(kv->memory, kv->at[g] + (uint64_t)from * kv->step[g],
                          (uint64_t)(b - from) * kv->step[g]);
      discarded += b - from;
    }
  return discarded;
}

uint8_t *pe_kv_blocks(const pe_kv *kv, int32_t group, uint64_t *bytes) {
  *bytes = (uint64_t)kv->blocks * kv->step[group];
  return kv->memory->data + kv->at[group];
}

static void copy_block(pe_kv *kv, int32_t group, int32_t from, int32_t to) {
  assert(!kv->busy);
  uint8_t *blocks = kv->memory->data + kv->at[group];
  memcpy(blocks + (uint64_t)to * kv->step[group], blocks + (uint64_t)from * kv->step[group],
         kv->step[group]);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int32_t blocks_of(const pe_kv *kv, int32_t tokens) {
  return tokens / kv->block + (tokens % kv->block != 0);
}

/* Entry i cannot be written to: it has no block, or one with other holders. */
static bool lacks(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t i) {
  return i >= s->count[group] || s->table[group][i] < 0 || kv->refs[group][s->table[group][i]] > 1;
}

int32_t pe_kv_needed(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to) {
  int32_t n = 0, last = blocks_of(kv, to);
  for (int32_t i = from / kv->block; i < last; i++) n += lacks(kv, s, group, i);
  return n;
}

static void prepare_group(pe_kv *kv, pe_kv_seq *s, int32_t group, int32_t from, int32_t to) {
  int32_t *table = s->table[group], last = blocks_of(kv, to);
  for (; s->count[group] < last; s->count[group]++) table[s->count[group]] = -1;
  for (int32_t i = from / kv->block; i < last; i++) {
    if (!lacks(kv, s, group, i)) continue;
    int32_t old = table[i];
    table[i] = take_block(kv, group);
    if (old >= 0 && (int64_t)i * kv->block < from) copy_block(kv, group, old, table[i]);
    pe_kv_release_block(kv, group, old);
  }
  if (s->gone[group] > from / kv->block) s->gone[group] = from / kv->block;
}

pe_status pe_kv_prepare(pe_kv *kv, pe_kv_seq *s, int32_t from, int32_t to, pe_error *err) {
  if (from < 0 || to < from)
    return pe_fail(err, PE_EARG, "cannot prepare the KV cache for tokens %d to %d", from, to);
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    int32_t needed = pe_kv_needed(kv, s, g, from, to);
    if (needed > kv->free_count[g])
      return pe_fail(err, PE_ELIMIT,
                     "the KV cache is full: %d blocks of %d tokens are needed, %d are free", needed,
                     kv->block, kv->free_count[g]);
  }
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    pe_status rc =
        pe_grow(&s->table[g], &s->cap[g], (size_t)blocks_of(kv, to), sizeof(int32_t), err);
    if (rc) return rc;
  }
  for (int32_t g = 0; g < kv->graph->group_count; g++) prepare_group(kv, s, g, from, to);
  s->tokens = to;
  return PE_OK;
}

/* The first token that token `next` can see; 0 without a window. */
static int32_t first_seen(const pe_kv *kv, int32_t group, int32_t next) {
  int32_t window = kv->graph->group[group].window;
  return window > 0 && next >= window ? next - window + 1 : 0;
}

void pe_kv_retire(pe_kv *kv, pe_kv_seq *s, int32_t next) {
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    int32_t whole = first_seen(kv, g, next) / kv->block;
    if (whole > s->count[g]) whole = s->count[g];
    for (; s->gone[g] < whole; s->gone[g]++) {
      pe_kv_release_block(kv, g, s->table[g][s->gone[g]]);
      s->table[g][s->gone[g]] = -1;
    }
  }
}

pe_status pe_kv_fork(pe_kv *kv, const pe_kv_seq *parent, pe_kv_seq *child, pe_error *err) {
  pe_kv_seq s = {.tokens = parent->tokens};
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < kv->graph->group_count; g++)
    rc = pe_grow(&s.table[g], &s.cap[g], (size_t)parent->count[g], sizeof(int32_t), err);
  if (rc) {
    pe_kv_release(kv, &s);
    return rc;
  }
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    s.count[g] = parent->count[g], s.gone[g] = parent->gone[g];
    for (int32_t i = 0; i < s.count[g]; i++)
      pe_kv_retain_block(kv, g, s.table[g][i] = parent->table[g][i]);
  }
  *child = s;
  return PE_OK;
}

bool pe_kv_can_trim(const pe_kv *kv, const pe_kv_seq *s, int32_t tokens) {
  if (tokens < 0 || tokens > s->tokens) return false;
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    int32_t last = blocks_of(kv, tokens);
    if (last > s->count[g]) return false;
    for (int32_t i = first_seen(kv, g, tokens) / kv->block; i < last; i++)
      if (s->table[g][i] < 0) return false;
  }
  return true;
}

void pe_kv_trim(pe_kv *kv, pe_kv_seq *s, int32_t tokens) {
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    while (s->count[g] > blocks_of(kv, tokens))
      pe_kv_release_block(kv, g, s->table[g][--s->count[g]]);
    if (s->gone[g] > s->count[g]) s->gone[g] = s->count[g];
  }
  s->tokens = tokens;
}

void pe_kv_release(pe_kv *kv, pe_kv_seq *s) {
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    while (s->count[g]) pe_kv_release_block(kv, g, s->table[g][--s->count[g]]);
    pe_free(s->table[g]);
  }
  *s = (pe_kv_seq){0};
}

pe_status pe_kv_share(pe_kv *kv, pe_kv_seq *s, int32_t group, int32_t block, pe_error *err) {
  pe_status rc =
      pe_grow(&s->table[group], &s->cap[group], (size_t)s->count[group] + 1, sizeof(int32_t), err);
  if (rc) return rc;
  pe_kv_retain_block(kv, group, block);
  s->table[group][s->count[group]++] = block;
  return PE_OK;
}

void pe_kv_set_tokens(pe_kv_seq *s, int32_t tokens) { s->tokens = tokens; }

/* ---- rows in and out ------------------------------------------------------------------------- */

typedef struct transfer {
  pe_cache_args args;
  const int32_t *table;
  int32_t from, to;
  uint64_t step; /* from block to block */
  bool in;       /* to the cache */
} transfer;

/* n rows of one head in a block, from row `within` on. */
static void move_run(const transfer *t, uint8_t *head, bool keys, int32_t within, int32_t n,
                     uint64_t row, uint8_t *flat) {
  uint8_t *at = head + (uint64_t)within * row;
  if (keys && t->in)
    pe_kv_put_keys(&t->args, head, within, n, flat);
  else if (keys)
    pe_kv_get_keys(&t->args, head, within, n, flat);
  else
    memcpy(t->in ? at : flat, t->in ? flat : at, (uint64_t)n * row);
}

/* The keys or values of one head of one layer, block by block; part: where they are in block 0.
 * Returns the end of what it moved in flat. */
static uint8_t *move_head(const transfer *t, uint8_t *part, bool keys, int32_t head,
                          uint8_t *flat) {
  const int32_t block = t->args.block;
  const uint64_t row =
      (uint64_t)pe_kv_row_bytes((pe_kv_type)t->args.type, keys ? t->args.key : t->args.value);
  for (int32_t i = t->from, n; i < t->to; i += n) {
    int32_t within = i % block;
    n = block - within < t->to - i ? block - within : t->to - i;
    move_run(
        t, part + (uint64_t)t->table[i / block] * t->step + (uint64_t)head * (uint64_t)block * row,
        keys, within, n, row, flat);
    flat += (uint64_t)n * row;
  }
  return flat;
}

static void move_rows(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                      uint8_t *flat, bool in) {
  assert(!kv->busy);
  const pe_cache_group *c = &kv->graph->group[group];
  const transfer t = {
      .args = {group, c->heads, c->key, c->value, kv->block, (int32_t)kv->type},
      .table = s->table[group],
      .from = from,
      .to = to,
      .step = kv->step[group],
      .in = in,
  };
  for (size_t i = 0; i < kv->graph->layer_count; i++) {
    if (kv->graph->layer[i].group != group) continue;
    for (int32_t h = 0; h < c->heads; h++) flat = move_head(&t, kv->layer[i].keys, true, h, flat);
    for (int32_t h = 0; c->value && h < c->heads; h++)
      flat = move_head(&t, kv->layer[i].values, false, h, flat);
  }
}

void pe_kv_copy_out(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                    uint8_t *out) {
  move_rows(kv, s, group, from, to, out, false);
}

void pe_kv_copy_in(pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                   const uint8_t *in) {
  move_rows(kv, s, group, from, to, (uint8_t *)(uintptr_t)in, true);
}
