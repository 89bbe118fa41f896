/* batch_room.c - see batch_seq.h: how many blocks are taken, promised and free. */
#include "runtime/batch/batch_seq.h"

#include <string.h>

/* ---- counting ------------------------------------------------------------------------------ */

/* The position that a sequence will surely reach: the end of its known tokens. Where a window frees
 * blocks on the way, one step ahead is enough. */
static int32_t reach(const pe_batch *b, const pe_batch_seq *seq, int32_t group) {
  int32_t left = seq->count - seq->cache.past;
  const pe_media *media = seq->request->r.media;
  int32_t most = media && media->longest > b->o.step_tokens ? media->longest : b->o.step_tokens;
  if (b->graph->group[group].window && left > most) left = most;
  return seq->cache.past + left;
}

static int32_t needed(const pe_batch *b, const pe_batch_seq *seq, int32_t group) {
  return pe_kv_needed(b->kv, &seq->cache.tables, group, seq->cache.past, reach(b, seq, group));
}

static int32_t *holders_of(const pe_batch *b, int32_t group) {
  return b->room.holders + (size_t)group * (size_t)b->kv->blocks;
}

/* Adds a sequence's blocks and promises to the count, or subtracts them. A running sequence always
 * needs at least one more block: for the tokens that it will generate. */
static void tally(pe_batch *b, pe_batch_seq *seq, bool add) {
  const pe_kv_seq *t = &seq->cache.tables;
  if (!pe_batch_seq_runs(seq)) return;
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int32_t *holders = holders_of(b, g), held = 0;
    for (int32_t k = t->gone[g]; k < t->count[g]; k++) {
      int32_t block = t->table[g][k];
      if (block >= 0) held += add ? holders[block]++ == 0 : --holders[block] == 0;
    }
    b->room.held[g] += add ? held : -held;
    if (add) {
      int32_t need = needed(b, seq, g);
      seq->promise[g] = need > 1 ? need : 1;
    }
    b->room.promised[g] += add ? seq->promise[g] : -seq->promise[g];
  }
}

static void count_pins(pe_batch *b, int32_t group) {
  int32_t *holders = holders_of(b, group);
  memset(b->room.mark, 0, (size_t)b->kv->blocks);
  b->room.held[group] = pe_prefix_pinned(b->prefix, group, b->room.mark);
  for (int32_t i = 0; i < b->kv->blocks; i++) holders[i] = b->room.mark[i];
}

static void count(pe_batch *b) {
  if (b->room.counted) return;
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    count_pins(b, g);
    b->room.promised[g] = 0;
  }
  for (int32_t i = 0; i < b->running; i++) tally(b, b->active[i], true);
  b->visits += (uint64_t)b->running;
  b->room.counted = true;
}

void pe_room_forget(pe_batch *b) { b->room.counted = false; }

void pe_room_take_out(pe_batch *b, pe_batch_seq *seq) {
  if (b->room.counted) tally(b, seq, false);
}

void pe_room_put_back(pe_batch *b, pe_batch_seq *seq) {
  if (b->room.counted) tally(b, seq, true);
}

/* ---- asking -------------------------------------------------------------------------------- */

bool pe_room_fits(pe_batch *b, const pe_batch_seq *seq) {
  count(b);
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t others = b->room.promised[g] - seq->promise[g];
    if (needed(b, seq, g) + others > b->kv->blocks - b->room.held[g]) return false;
  }
  return true;
}

bool pe_room_could_fit(pe_batch *b, const pe_batch_seq *seq) {
  int32_t found = pe_batch_probe(b, seq), size = b->kv->block;
  count(b);
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    if (b->graph->group[g].window) continue;
    int64_t need = (seq->count + size - 1) / size - found / size;
    if (need + b->room.promised[g] > b->kv->blocks - b->room.held[g]) return false;
  }
  return true;
}

void pe_batch_room(pe_batch *b, int64_t *free_tokens, int64_t *all_tokens) {
  int32_t most = 0;
  pe_room_forget(b);
  count(b);
  for (int32_t g = 0; g < b->graph->group_count; g++)
    if (b->room.held[g] > most) most = b->room.held[g];
  pe_room_forget(b);
  *free_tokens = (int64_t)(b->kv->blocks - most) * b->kv->block;
  *all_tokens = (int64_t)b->kv->blocks * b->kv->block;
}

/* ---- eviction ------------------------------------------------------------------------------ */

void pe_room_make(pe_batch *b, const pe_batch_seq *seq, int32_t count) {
  int32_t past = seq->cache.past;
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t need = pe_kv_needed(b->kv, &seq->cache.tables, g, past, past + count);
    int64_t missing = need - (b->kv->blocks - b->kv->used[g]);
    if (missing > 0) pe_prefix_evict(b->prefix, g, (int32_t)missing);
  }
}

/* A quarter of the pool: large enough that a load needs few rounds, small enough to spare the
 * rest. */
bool pe_room_evict_some(pe_batch *b) {
  int32_t some = b->kv->blocks / 4 + 1, got = 0;
  for (int32_t g = 0; g < b->graph->group_count; g++) got += pe_prefix_evict(b->prefix, g, some);
  return got > 0;
}
