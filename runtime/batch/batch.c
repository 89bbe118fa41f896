/* batch.c - see batch.h: opening, joining and leaving, what there is. */
#include "runtime/batch/batch_seq.h"

#include <string.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Half of the machine: the weights want to stay in memory, too. */
static int64_t tokens_for(const pe_graph *g, const pe_batch_options *o) {
  int64_t want = (int64_t)o->rows * o->context;
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  pe_kv_type type = o->kv_bits == 16  ? PE_KV_F16
                    : o->kv_bits == 8 ? PE_KV_Q8
                    : o->kv_bits == 4 ? PE_KV_Q4
                                      : PE_KV_F32;
  uint64_t token = pe_kv_token_bytes(g, type);
  if (pages <= 0 || size <= 0 || !token) return want;
  uint64_t most = (uint64_t)pages / 2 * (uint64_t)size / token;
  return (uint64_t)want > most ? (int64_t)most : want;
}

static pe_status fill_options(pe_batch *b, const pe_batch_options *o, pe_error *err) {
  b->o = *o;
  pe_batch_options *d = &b->o;
  if (o->rows < 0 || o->rows > 1 << 16)
    return pe_fail(err, PE_EARG, "rows is %d, it must be within 1 and %d", o->rows, 1 << 16);
  if (o->step_tokens < 0 || o->step_tokens > 1 << 20)
    return pe_fail(err, PE_EARG, "step_tokens is %d, it must be within 1 and %d", o->step_tokens,
                   1 << 20);
  if (o->context < 0 || o->context == 1 || o->context > INT32_MAX / 2)
    return pe_fail(err, PE_EARG, "context is %lld, it must be within 2 and %d",
                   (long long)o->context, INT32_MAX / 2);
  if (o->cache_tokens < 0)
    return pe_fail(err, PE_EARG, "cache_tokens is %lld, it must be 1 or more",
                   (long long)o->cache_tokens);
  if (o->stride < 0) return pe_fail(err, PE_EARG, "stride is %d, it must be 1 or more", o->stride);
  if (!d->rows) d->rows = 64;
  if (!d->step_tokens) d->step_tokens = 512;
  if (!d->context) d->context = 4096;
  if (!d->stride) d->stride = 512;
  if (!d->cache_tokens) d->cache_tokens = tokens_for(b->graph, d);
  return PE_OK;
}

static pe_status copy_end_ids(pe_batch *b, pe_error *err) {
  int32_t *ids = pe_alloc((size_t)b->o.end_count * sizeof *ids), n = 0;
  if (!ids) return b->o.end_ids = NULL, pe_nomem(err, "end ids");
  for (int32_t i = 0; i < b->o.end_count;
       i++) /* files name ids that no head gives: they cannot come */
    if (b->o.end_ids[i] >= 0 && b->o.end_ids[i] < b->plan->vocabulary) ids[n++] = b->o.end_ids[i];
  b->o.end_ids = ids, b->o.end_count = n;
  return PE_OK;
}

static pe_status open_drawers(pe_batch *b, pe_error *err) {
  int32_t threads = pe_pool_threads(b->pool), n = threads < b->o.rows ? threads : b->o.rows;
  if (!(b->drawer = pe_calloc((size_t)n, sizeof *b->drawer))) return pe_nomem(err, "samplers");
  pe_status rc = PE_OK;
  while (!rc && b->drawers < n)
    rc = pe_sampler_open(b->plan->vocabulary, &b->drawer[b->drawers++].sampler, err);
  return rc;
}

static pe_status open_caches(pe_batch *b, pe_error *err) {
  const pe_batch_options *o = &b->o;
  int32_t slots = o->rows + 1; /* one more for loading a file */
  pe_kv_options kv = {
      .bits = o->kv_bits, .block = o->kv_block, .tokens = o->cache_tokens, .sequences = slots};
  pe_status rc = pe_kv_open(b->graph, &kv, &b->kv, err);
  if (!rc) rc = pe_recur_open(b->graph, slots, &b->recur, err);
  if (!rc) rc = pe_device_open(b->plan, b->pool, b->kv, b->recur, &b->exec, err);
  static const uint8_t none[sizeof o->prefix.identity];
  if (!rc && !memcmp(o->prefix.identity, none, sizeof none))
    pe_seq_identity(b->kv, b->o.prefix.identity);
  if (!rc) rc = pe_prefix_open(b->kv, b->recur, &o->prefix, &b->prefix, err);
  if (!rc) rc = open_drawers(b, err);
  if (rc) return rc;
  b->run = pe_calloc((size_t)o->rows, sizeof *b->run),
  b->ran = pe_calloc((size_t)o->rows, sizeof(pe_batch_seq *));
  b->drawing = pe_calloc((size_t)o->rows, sizeof(pe_batch_seq *));
  b->mark = pe_calloc((size_t)b->kv->blocks + 1, 1);
  return b->run && b->ran && b->drawing && b->mark ? PE_OK : pe_nomem(err, "batch");
}

pe_status pe_batch_open(const pe_plan *plan, pe_pool *pool, const pe_batch_options *o,
                        pe_batch **out, pe_error *err) {
  pe_batch *b = pe_calloc(1, sizeof *b);
  if (!b) return pe_nomem(err, "batch");
  b->plan = plan, b->graph = plan->graph, b->pool = pool, b->next = 1;
  pe_status rc = fill_options(b, o, err);
  pe_tokenizer_retain(b->o.tokenizer);
  if (rc)
    b->o.end_ids = NULL;
  else
    rc = copy_end_ids(b, err);
  if (!rc) rc = open_caches(b, err);
  if (rc) {
    pe_batch_close(b);
    return rc;
  }
  b->o.prefix.folder = NULL;
  b->caching = o->prefix.budget > 0, b->stopping = b->graph->state_floats > 0;
  for (int32_t g = 0; g < b->graph->group_count; g++) b->stopping |= b->graph->group[g].window > 0;
  *out = b;
  return PE_OK;
}

bool pe_batch_idle(pe_batch *b) { return b->prefix && pe_prefix_write(b->prefix); }

void pe_batch_close(pe_batch *b) {
  if (!b) return;
  while (pe_batch_idle(b)) continue;
  for (size_t i = 0; i < b->row_count; i++)
    pe_seq_close(&b->row[i]->seq), pe_batch_seq_free(b->row[i]);
  pe_free(b->row), pe_free(b->event), pe_free(b->run), pe_free(b->ran), pe_free(b->drawing),
      pe_free(b->mark);
  pe_free((void *)b->o.end_ids), pe_tokenizer_release(b->o.tokenizer);
  for (int32_t i = 0; i < b->drawers; i++)
    pe_sampler_close(b->drawer[i].sampler), pe_free(b->drawer[i].ban);
  pe_free(b->drawer);
  pe_prefix_close(b->prefix), pe_device_close(b->exec), pe_recur_close(b->recur),
      pe_kv_close(b->kv);
  pe_free(b);
}

/* ---- joining and leaving --------------------------------------------------------------------------------------- */

pe_status pe_batch_reserve(pe_batch *b, int32_t more, pe_error *err) {
  pe_status rc = pe_grow(&b->row, &b->row_cap, b->row_count + (size_t)more, sizeof *b->row, err);
  return rc ? rc
            : pe_grow(&b->event, &b->event_cap, b->event_count + 3 * (b->alive + (size_t)more),
                      sizeof *b->event, err);
}

void pe_batch_enter(pe_batch *b, pe_batch_seq *r) {
  r->id = b->next++;
  b->row[b->row_count++] = r, b->alive++;
  b->stats.added++;
}

static pe_status make_rows(pe_batch *b, pe_batch_request *q, const int32_t *token,
                           pe_batch_seq **rows, pe_error *err) {
  pe_status rc = PE_OK;
  int32_t n = 0;
  for (; !rc && n < q->r.n; n++) {
    rows[n] = NULL;
    if ((rc = pe_batch_seq_new(b, q, token, q->r.prompt.count, &rows[n], err))) break;
    rows[n]->choice = n, rows[n]->leader = n ? b->next : 0;
    rows[n]->sampling.seed += (uint64_t)n;
  }
  while (rc && n-- > 0) pe_batch_seq_free(rows[n]);
  return rc;
}

/* So that whoever draws for this request has room for all that may not come. */
static pe_status reserve_bans(pe_batch *b, const pe_request *r, pe_error *err) {
  size_t most = (size_t)b->o.end_count + (size_t)r->stop_ids.count + (size_t)r->bad_count;
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < b->drawers; i++)
    rc = pe_grow(&b->drawer[i].ban, &b->drawer[i].ban_cap, most, sizeof(int32_t), err);
  return rc;
}

static void peek(const pe_batch *b, pe_batch_seq *r) {
  r->peeked = pe_batch_probe(b, r);
  r->peeked_at = pe_prefix_changes(b->prefix);
}

pe_status pe_batch_add(pe_batch *b, const pe_request *r, pe_seq_id *first, pe_error *err) {
  int32_t limit = 0;
  pe_batch_request *q = NULL;
  pe_batch_seq *rows[PE_BATCH_CHOICES];
  pe_status rc = pe_batch_request_check(b, r, &limit, err);
  if (!rc) rc = pe_batch_request_copy(r, &q, err);
  if (rc) return rc;
  q->limit = limit;
  rc = pe_batch_reserve(b, q->r.n, err);
  if (!rc) rc = reserve_bans(b, r, err);
  if (!rc) rc = make_rows(b, q, r->prompt.id, rows, err);
  if (!rc) *first = b->next;
  for (int32_t i = 0; !rc && i < q->r.n; i++) pe_batch_enter(b, rows[i]);
  if (!rc) peek(b, rows[0]);
  pe_batch_request_release(q);
  return rc;
}

void pe_batch_cancel(pe_batch *b, pe_seq_id id) {
  pe_batch_seq *r = pe_batch_find(b, id);
  if (!r || r->state == PE_SEQ_DONE) return;
  pe_event e = {.row = id, .stop_index = -1};
  pe_batch_finish(b, r, PE_FINISH_CANCEL, &e);
}

void pe_batch_preempt(pe_batch *b, pe_seq_id id) {
  pe_batch_seq *r = pe_batch_find(b, id);
  if (r && pe_batch_seq_runs(r)) pe_batch_yield(b, r);
}

/* ---- what there is --------------------------------------------------------------------------------------------- */

pe_batch_seq *pe_batch_find(const pe_batch *b, pe_seq_id id) {
  size_t low = 0, high = b->row_count;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (b->row[mid]->id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low < b->row_count && b->row[low]->id == id ? b->row[low] : NULL;
}

pe_status pe_batch_living(const pe_batch *b, pe_seq_id id, pe_batch_seq **out, pe_error *err) {
  *out = pe_batch_find(b, id);
  if (*out && (*out)->state != PE_SEQ_DONE) return PE_OK;
  return pe_fail(err, PE_ENOTFOUND, "row %lld is %s", (long long)id,
                 id >= 1 && id < b->next ? "done" : "not there");
}

/* Goes round the WAITING rows whose numbers are old, as long as few tokens are compared. */
static void peek_some(pe_batch *b) {
  enum { MOST = 1 << 16 };
  uint64_t now = pe_prefix_changes(b->prefix);
  int64_t compared = 0;
  size_t first = 0;
  while (first < b->row_count && b->row[first]->id < b->peek) first++;
  for (size_t i = 0; i < b->row_count && compared < MOST; i++) {
    pe_batch_seq *r = b->row[(first + i) % b->row_count];
    if (r->state != PE_SEQ_WAITING || r->leader || r->peeked_at == now) continue;
    peek(b, r);
    compared += r->peeked + b->kv->block;
    b->peek = r->id + 1;
  }
}

static void describe(const pe_batch_seq *r, pe_seq_info *out) {
  int32_t left = r->state >= PE_SEQ_HELD || r->leader ? 0 : r->count - r->seq.past;
  *out = (pe_seq_info){.row = r->id,
                       .state = r->state,
                       .prompt = pe_batch_seq_prompt(r),
                       .past = r->seq.past,
                       .generated = pe_batch_seq_made(r),
                       .cached = r->state == PE_SEQ_WAITING ? r->peeked : r->cached,
                       .left = left,
                       .choice = r->choice,
                       .follows = r->leader != 0,
                       .age_ns = pe_clock_ns() - r->added_ns,
                       .bytes = r->seq.kv ? pe_seq_bytes(&r->seq) : 0};
}

int32_t pe_batch_rows(pe_batch *b, pe_seq_info *out, int32_t most) {
  int32_t n = 0;
  if (most > 0 && b->caching) peek_some(b);
  for (size_t i = 0; i < b->row_count; i++) {
    if (b->row[i]->state == PE_SEQ_DONE) continue;
    if (n < most) describe(b->row[i], &out[n]);
    n++;
  }
  return n;
}

bool pe_batch_info(const pe_batch *b, pe_seq_id id, pe_seq_info *out) {
  const pe_batch_seq *r = pe_batch_find(b, id);
  if (r) describe(r, out);
  return r != NULL;
}

void pe_batch_room(const pe_batch *b, int64_t *free_tokens, int64_t *all_tokens) {
  int32_t most = 0;
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int32_t held = pe_batch_held(b, g);
    if (held > most) most = held;
  }
  *free_tokens = (int64_t)(b->kv->blocks - most) * b->kv->block;
  *all_tokens = (int64_t)b->kv->blocks * b->kv->block;
}

int32_t pe_batch_events(const pe_batch *b, const pe_event **out) {
  *out = b->event;
  return (int32_t)b->event_count;
}

const char *pe_finish_name(pe_finish f) {
  static const char *const names[] = {"none", "stop", "length", "cancel", "error"};
  return (unsigned)f < sizeof names / sizeof *names ? names[f] : "none";
}

void pe_batch_stat(const pe_batch *b, pe_batch_stats *out) {
  *out = b->stats;
  out->running = b->running, out->waiting = (int32_t)b->alive - b->running;
  pe_prefix_stat(b->prefix, &out->prefix);
}

int32_t pe_batch_trace(const pe_batch *b, pe_trace *out, int32_t most) {
  uint64_t have = b->stats.steps < PE_TRACE_STEPS ? b->stats.steps : PE_TRACE_STEPS;
  if (most < 0) most = 0;
  if (have > (uint64_t)most) have = (uint64_t)most;
  for (uint64_t i = 0; i < have; i++)
    out[i] = b->trace[(b->stats.steps - have + i) % PE_TRACE_STEPS];
  return (int32_t)have;
}
