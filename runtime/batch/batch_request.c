/* batch_request.c - see batch_seq.h: the fields of a request, checking and copying it. */
#include "runtime/batch/batch_seq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- scalar fields ------------------------------------------------------------------------- */

#define INTEGER(n) .name = #n, .type = PE_FIELD_INTEGER, .offset = offsetof(pe_request, n)
#define BOOLEAN(n) .name = #n, .type = PE_FIELD_BOOLEAN, .offset = offsetof(pe_request, n)

static const pe_field fields[] = {
    {INTEGER(max_tokens), .max = INFINITY, .absent = -1,
     .help = "Tokens to generate; without it, up to the end of the context."},
    {INTEGER(min_tokens), .max = INFINITY,
     .help = "End tokens and stop strings are ignored before this many tokens."},
    {INTEGER(n), .min = 1, .max = PE_BATCH_CHOICES, .absent = 1,
     .help = "Choices: answers to the same prompt."},
    {BOOLEAN(ignore_eos), .help = "The model's end tokens do not end the answer."},
    {BOOLEAN(skip_special), .absent = 1, .help = "Leaves special tokens out of the text."},
    {BOOLEAN(no_cache), .help = "Neither reads nor fills the prefix cache."},
    {BOOLEAN(hold), .help = "Every draw waits for sample."},
    {BOOLEAN(fast_forward), .absent = 1,
     .help = "Where a grammar leaves one text only, appends it without steps."},
    {BOOLEAN(keep_logits), .help = "Keeps the logits of each step, from the first token on."},
    {.name = "salt",
     .type = PE_FIELD_LONG,
     .offset = offsetof(pe_request, salt),
     .help = "Separates the prefix caches of tenants."},
};
#undef INTEGER
#undef BOOLEAN

pe_field_list pe_request_fields(void) {
  return (pe_field_list){fields, sizeof fields / sizeof *fields};
}

pe_request pe_request_defaults(void) {
  pe_request r = {.sampling = pe_sampling_defaults()};
  pe_field_set_defaults(pe_request_fields(), &r);
  return r;
}

/* ---- checking ------------------------------------------------------------------------------ */

static pe_status check_ids(int32_t limit, const char *field, pe_ids_view v, pe_error *err) {
  if (v.count < 0 || (v.count && !v.id))
    return pe_fail_field(err, PE_EARG, field, "%s has %d ids", field, v.count);
  for (int32_t i = 0; i < v.count; i++)
    if (v.id[i] < 0 || v.id[i] >= limit)
      return pe_fail_field(err, PE_EARG, field, "%s: token id must be between 0 and %d, got %d",
                           field, limit - 1, v.id[i]);
  return PE_OK;
}

pe_status pe_batch_ids_check(const pe_batch *b, const char *field, pe_ids_view v, pe_error *err) {
  return check_ids(b->plan->tokens, field, v, err);
}

/* Ids that are only compared with drawn ones. A head may have more of them than the tables. */
static pe_status check_compared(const pe_batch *b, const char *field, pe_ids_view v,
                                pe_error *err) {
  const pe_plan *p = b->plan;
  return check_ids(p->tokens > p->vocabulary ? p->tokens : p->vocabulary, field, v, err);
}

static pe_status check_bad_words(const pe_batch *b, const pe_request *r, pe_error *err) {
  static const char field[] = "bad_words";
  if (r->bad_count < 0)
    return pe_fail_field(err, PE_EARG, field, "bad_words has %d entries", r->bad_count);
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < r->bad_count; i++) {
    rc = check_compared(b, field, r->bad_words[i], err);
    if (!rc && !r->bad_words[i].count)
      rc = pe_fail_field(err, PE_EARG, field, "bad_words[%d] is empty", i + 1);
  }
  return rc;
}

static pe_status check_boundaries(const pe_request *r, pe_error *err) {
  static const char field[] = "boundaries";
  if (r->boundary.count < 0)
    return pe_fail_field(err, PE_EARG, field, "boundaries has %d entries", r->boundary.count);
  for (int32_t i = 0; i < r->boundary.count; i++)
    if (r->boundary.id[i] < 0 || r->boundary.id[i] > r->prompt.count)
      return pe_fail_field(err, PE_EARG, field,
                           "boundaries[%d] must be between 0 and the prompt's %d tokens, got %d",
                           i + 1, r->prompt.count, r->boundary.id[i]);
  return PE_OK;
}

static pe_status check_stop(const pe_batch *b, const pe_request *r, pe_error *err) {
  static const char field[] = "stop";
  if (r->stop_count < 0)
    return pe_fail_field(err, PE_EARG, field, "stop has %d strings", r->stop_count);
  if (r->stop_count && !b->o.tokenizer)
    return pe_fail_field(err, PE_EARG, field, "stop strings need a tokenizer, got %d strings",
                         r->stop_count);
  for (int32_t i = 0; i < r->stop_count; i++)
    if (!r->stop[i].len) return pe_fail_field(err, PE_EARG, field, "stop[%d] is empty", i + 1);
  return PE_OK;
}

static pe_status check_phases(const pe_batch *b, const pe_request *r, pe_error *err) {
  if (r->phase_count && !b->tokens)
    return pe_fail_field(err, PE_EARG, "phases", "phases need a tokenizer, got %d of them",
                         r->phase_count);
  pe_status rc = pe_phases_check(r->phase, r->phase_count, err);
  for (int32_t i = 0; !rc && i < r->phase_count; i++)
    rc = check_compared(b, "phases", (pe_ids_view){r->phase[i].mark_id, r->phase[i].mark_ids}, err);
  return rc;
}

static pe_status check_lists(const pe_batch *b, const pe_request *r, pe_error *err) {
  pe_status rc = pe_batch_ids_check(b, "prompt", r->prompt, err);
  if (!rc) rc = check_compared(b, "stop_ids", r->stop_ids, err);
  if (!rc && r->keep_special.count < 0)
    rc = pe_fail_field(err, PE_EARG, "keep_special", "keep_special has %d ids",
                       r->keep_special.count);
  if (!rc) rc = check_bad_words(b, r, err);
  if (!rc) rc = check_boundaries(r, err);
  if (!rc) rc = check_phases(b, r, err);
  return rc ? rc : check_stop(b, r, err);
}

/* Pictures whose rows see each other are computed in one step: a window must have room for them and
 * for what they see before them. */
pe_status pe_batch_media_check(const pe_batch *b, const pe_request *r, pe_error *err) {
  const pe_media *m = r->media;
  if (!m) return PE_OK;
  if (m->tokens != r->prompt.count)
    return pe_fail_field(err, PE_EARG, "media",
                         "media is of a prompt of %d tokens, this one has %d", m->tokens,
                         r->prompt.count);
  if (m->items && (m->width != b->plan->feature_width || m->planes != b->plan->feature_planes))
    return pe_fail_field(err, PE_ESHAPE, "media",
                         "media has %d planes of features of width %d, the model takes %d of %d",
                         m->planes, m->width, b->plan->feature_planes, b->plan->feature_width);
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t window = b->graph->group[g].window, size = b->kv->block;
    int64_t need = (window + m->longest + size - 2) / size + 1;
    if (window && m->longest && need > b->kv->blocks)
      return pe_fail_field(err, PE_ELIMIT, "media",
                           "a picture of %d tokens must be computed in one step, which needs a KV "
                           "cache of %lld tokens: the cache has %lld",
                           m->longest, (long long)(need * size), (long long)(b->kv->blocks * size));
  }
  return PE_OK;
}

static pe_status check_numbers(const pe_batch *b, const pe_request *r, pe_error *err) {
  pe_request numbers = *r;
  if (!numbers.n) numbers.n = 1; /* C callers may leave it out */
  if (!r->prompt.count) return pe_fail_field(err, PE_EARG, "prompt", "the prompt is empty");
  pe_status rc = pe_field_check_all(pe_request_fields(), &numbers, err);
  if (rc) return rc;
  if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
    return pe_fail_field(err, PE_EARG, "min_tokens",
                         "min_tokens must not exceed max_tokens, got %d and %d", r->min_tokens,
                         r->max_tokens);
  if (r->prompt.count >= b->o.context)
    return pe_fail_field(err, PE_ELIMIT, "prompt",
                         "prompt of %d tokens does not fit: the context is %lld and one token must "
                         "be left for the answer",
                         r->prompt.count, (long long)b->o.context);
  return PE_OK;
}

/* Tokens that one sequence can have in the caches. A window never needs more than it sees, wherever
 * its blocks begin. */
static int64_t capacity(const pe_batch *b) {
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t window = b->graph->group[g].window, size = b->kv->block;
    if (!window || (window + size - 2) / size + 1 > b->kv->blocks) return b->kv->blocks * size;
  }
  return b->o.context;
}

int32_t pe_batch_request_limit(const pe_batch *b, const pe_request *r) {
  int64_t room = capacity(b), most = b->o.context - r->prompt.count, n = r->max_tokens;
  if (n < 0) n = room - r->prompt.count + 1 > 1 ? room - r->prompt.count + 1 : 1;
  return (int32_t)(n < most ? n : most);
}

/* The last generated token is never computed, so it needs no room. */
static pe_status check_room(const pe_batch *b, const pe_request *r, pe_error *err) {
  int64_t room = capacity(b), n = pe_batch_request_limit(b, r);
  int64_t need = r->prompt.count + (n > 0 ? n - 1 : 0);
  if (need <= room) return PE_OK;
  return pe_fail(err, PE_ELIMIT,
                 "the request needs a KV cache of %lld tokens, the whole cache has %lld",
                 (long long)need, (long long)room);
}

pe_status pe_batch_request_check(const pe_batch *b, const pe_request *r, pe_error *err) {
  pe_status rc = pe_weights_intact(b->graph->weights, err);
  if (!rc) rc = check_numbers(b, r, err);
  if (!rc) rc = check_lists(b, r, err);
  if (!rc) rc = pe_batch_media_check(b, r, err);
  if (!rc) rc = pe_sampling_check(&r->sampling, b->plan->vocabulary, err);
  return rc ? rc : check_room(b, r, err);
}

/* ---- copying ------------------------------------------------------------------------------- */

static bool copy(pe_arena *a, const void *from, size_t count, size_t size, const void **out) {
  *out = NULL;
  if (!count) return true;
  char *to = pe_arena_alloc(a, count * size);
  if (!to) return false;
  *out = memcpy(to, from, count * size);
  return true;
}

static bool copy_ids(pe_arena *a, pe_ids_view *v) {
  const void *p;
  bool ok = copy(a, v->id, (size_t)v->count, sizeof *v->id, &p);
  v->id = p;
  return ok;
}

static bool copy_bad_words(pe_arena *a, pe_request *r) {
  pe_ids_view *to = pe_arena_alloc(a, (size_t)r->bad_count * sizeof *to + 1);
  bool ok = to != NULL;
  for (int32_t i = 0; ok && i < r->bad_count; i++) {
    to[i] = r->bad_words[i];
    ok = copy_ids(a, &to[i]);
  }
  r->bad_words = to;
  return ok;
}

static bool copy_strings(pe_arena *a, const pe_str **list, int32_t count) {
  pe_str *to = pe_arena_alloc(a, (size_t)count * sizeof *to + 1);
  bool ok = to != NULL;
  for (int32_t i = 0; ok && i < count; i++) {
    to[i] = (*list)[i];
    ok = (to[i].at = pe_arena_dup(a, to[i].at, to[i].len)) != NULL;
  }
  *list = to;
  return ok;
}

/* Its grammars are retained when everything is copied. */
static bool copy_phases(pe_arena *a, pe_request *r) {
  const void *copied;
  if (!copy(a, r->phase, (size_t)r->phase_count, sizeof *r->phase, &copied)) return false;
  pe_phase *to = (pe_phase *)(uintptr_t)copied;
  bool ok = true;
  for (int32_t i = 0; ok && i < r->phase_count; i++) {
    const void *ids;
    ok = copy(a, to[i].mark_id, (size_t)to[i].mark_ids, sizeof *to[i].mark_id, &ids) &&
         copy_strings(a, &to[i].mark, to[i].marks);
    to[i].mark_id = ids;
  }
  r->phase = to;
  return ok;
}

static bool copy_sampling(pe_arena *a, pe_sampling *s) {
  const void *bias, *banned = NULL;
  bool ok = copy(a, s->bias, (size_t)s->bias_count, sizeof *s->bias, &bias) &&
            copy(a, s->banned, (size_t)s->banned_count, sizeof *s->banned, &banned);
  s->bias = bias, s->banned = banned;
  return ok;
}

/* Without the prompt. */
static bool own_lists(pe_request *r, pe_arena *a) {
  return copy_ids(a, &r->stop_ids) && copy_ids(a, &r->keep_special) && copy_ids(a, &r->boundary) &&
         copy_bad_words(a, r) && copy_strings(a, &r->stop, r->stop_count) && copy_phases(a, r) &&
         copy_sampling(a, &r->sampling);
}

static void retain_grammars(pe_request *r) {
  for (int32_t i = 0; i < r->phase_count; i++)
    if (r->phase[i].grammar) pe_grammar_retain(r->phase[i].grammar);
}

bool pe_request_own(pe_request *r, pe_arena *arena) {
  pe_media *media = r->media;
  const int32_t phases = r->phase_count;
  bool ok = copy_ids(arena, &r->prompt) && own_lists(r, arena);
  r->media = NULL, r->phase_count = 0; /* so that a failure does not release them */
  if (!ok) return false;
  r->media = pe_media_retain(media), r->phase_count = phases;
  retain_grammars(r);
  return true;
}

void pe_request_disown(pe_request *r) {
  for (int32_t i = 0; i < r->phase_count; i++) pe_grammar_release(r->phase[i].grammar);
  pe_media_release(r->media);
  r->media = NULL, r->phase_count = 0;
}

static int by_number(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

void pe_batch_request_drop_media(pe_batch_request *q) {
  pe_media *media = q->r.media;
  if (!media) return;
  for (int32_t i = 0; q->name && i < media->items; i++) pe_names_release(q->names, q->name[i]);
  if (q->held) *q->held -= media->bytes;
  q->r.media = NULL, q->name = NULL;
  pe_media_release(media);
}

void pe_batch_request_release(pe_batch_request *q) {
  if (!q || --q->refs > 0) return;
  pe_batch_request_drop_media(q);
  pe_request_disown(&q->r);
  pe_arena_free(&q->arena);
  pe_free(q);
}

/* The words of its pictures. q->name is set when it holds all of them. */
static pe_status take_names(const pe_batch *b, pe_batch_request *q, pe_error *err) {
  const pe_media *media = q->r.media;
  if (!media) return PE_OK;
  int32_t *name = pe_arena_calloc(&q->arena, (size_t)media->items + 1, sizeof *name), n = 0;
  pe_status rc = name ? PE_OK : pe_nomem(err, "request");
  for (; !rc && n < media->items; n += !rc)
    rc = pe_names_put(b->kv->names, &media->name[n], &name[n], err);
  while (rc && n-- > 0) pe_names_release(b->kv->names, name[n]);
  if (!rc) q->names = b->kv->names, q->name = name;
  return rc;
}

pe_status pe_batch_request_copy(const pe_batch *b, const pe_request *r, pe_batch_request **out,
                                pe_error *err) {
  pe_batch_request *q = pe_calloc(1, sizeof *q);
  if (!q) return pe_nomem(err, "request");
  q->refs = 1, q->r = *r;
  q->r.n = r->n ? r->n : 1;
  q->r.prompt.id = NULL;
  pe_media_retain(q->r.media);
  pe_status rc = own_lists(&q->r, &q->arena) ? PE_OK : pe_nomem(err, "request");
  if (rc)
    q->r.phase_count = 0; /* not retained */
  else
    retain_grammars(&q->r);
  if (!rc) rc = take_names(b, q, err);
  if (rc) {
    pe_batch_request_release(q);
    return rc;
  }
  if (q->r.boundary.count)
    qsort((void *)q->r.boundary.id, (size_t)q->r.boundary.count, sizeof(int32_t), by_number);
  *out = q;
  return PE_OK;
}
