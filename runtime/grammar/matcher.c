/* matcher.c - see matcher.h: positions, and the steps between them. */
#include "runtime/grammar/matcher.h"

#include <string.h>

#include "runtime/grammar/matcher_parts.h"
#include "runtime/hash.h"

static pe_status no_memory(pe_error *err) { return pe_nomem(err, "a matcher"); }

/* ---- positions by their content -------------------------------------------------------------- */

static uint64_t hash_of(uint32_t here, const pe_matcher_thread *t, size_t n) {
  return pe_hash(t, n * sizeof *t) ^ pe_hash_u64(here);
}

static size_t slot_of(const pe_matcher *m, size_t position) {
  const pe_matcher_position *p = &m->position[position];
  size_t i = hash_of(p->here, m->thread + p->first, p->threads) & (m->slots - 1);
  while (m->slot[i] && m->slot[i] != position) i = (i + 1) & (m->slots - 1);
  return i;
}

static bool grow_slots(pe_matcher *m) {
  const size_t slots = m->slots ? 2 * m->slots : 64;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  pe_free(m->slot);
  m->slot = slot, m->slots = slots;
  for (size_t p = PE_MATCHER_START; p < m->positions; p++) m->slot[slot_of(m, p)] = (uint32_t)p;
  return true;
}

static uint64_t used_bytes(const pe_matcher *m) {
  return m->positions * (sizeof *m->position + m->classes * sizeof *m->next) +
         m->threads * sizeof *m->thread + pe_chart_used(m->chart);
}

static pe_status make_room(pe_matcher *m, size_t threads, pe_error *err) {
  if (2 * (m->positions + 1) > m->slots && !grow_slots(m)) return no_memory(err);
  if (used_bytes(m) > PE_MATCHER_BYTES)
    return pe_fail(err, PE_ELIMIT, "the grammar needs more than %d MB for this text",
                   PE_MATCHER_BYTES >> 20);
  pe_status rc =
      pe_grow(&m->position, &m->position_cap, m->positions + 1, sizeof *m->position, err);
  if (!rc)
    rc = pe_grow(&m->thread, &m->thread_cap, m->threads + threads + 1, sizeof *m->thread, err);
  if (!rc)
    rc = pe_grow(&m->next, &m->next_cap, (m->positions + 1) * m->classes, sizeof *m->next, err);
  return rc;
}

/* The position of these threads, with the row that was made here, if one was. */
static pe_status intern(pe_matcher *m, uint32_t here, const pe_matcher_thread *t, size_t n,
                        uint32_t *out, pe_error *err) {
  pe_status rc = make_room(m, n, err);
  if (rc) return rc;
  size_t i = hash_of(here, t, n) & (m->slots - 1);
  for (; m->slot[i]; i = (i + 1) & (m->slots - 1)) {
    const pe_matcher_position *p = &m->position[m->slot[i]];
    if (p->here == here && p->threads == n && !memcmp(m->thread + p->first, t, n * sizeof *t))
      return *out = m->slot[i], PE_OK;
  }
  m->position[m->positions] =
      (pe_matcher_position){.here = here, .first = (uint32_t)m->threads, .threads = (uint32_t)n};
  memcpy(m->thread + m->threads, t, n * sizeof *t);
  m->threads += n;
  memset(m->next + m->positions * m->classes, 0, m->classes * sizeof *m->next);
  m->slot[i] = *out = (uint32_t)m->positions++;
  return PE_OK;
}

/* ---- dropping positions ---------------------------------------------------------------------- */

/* Numbers of what is kept, by position and by row; 0: it goes. */
typedef struct kept {
  uint32_t *position, *row;
} kept;

static void mark(const pe_matcher *m, const kept *k) {
  for (size_t i = 0; i <= m->steps; i++) k->position[m->past[i]] = 1;
  k->position[PE_MATCHER_DEAD] = 1;
  for (size_t p = PE_MATCHER_START; p < m->positions; p++) {
    const pe_matcher_position *q = &m->position[p];
    if (!k->position[p]) continue;
    if (q->here != PE_CHART_NONE) k->row[q->here] = 1;
    for (uint32_t t = 0; t < q->threads; t++) k->row[m->thread[q->first + t].row] = 1;
  }
}

static void move_position(pe_matcher *m, pe_matcher_position p, const uint32_t *row) {
  pe_matcher_position *to = &m->position[m->positions++];
  *to = p;
  to->first = (uint32_t)m->threads;
  if (p.here != PE_CHART_NONE) to->here = row[p.here];
  for (uint32_t t = 0; t < p.threads; t++) {
    const pe_matcher_thread from = m->thread[p.first + t];
    m->thread[m->threads++] = (pe_matcher_thread){row[from.row], from.state};
  }
}

/* Moves what is kept to the front; what was known about steps is forgotten. */
static void compact(pe_matcher *m, const kept *k) {
  const size_t positions = m->positions;
  for (size_t i = 0; i < PE_MATCHER_MASKS; i++) m->kept[i].at = PE_MATCHER_UNKNOWN;
  mark(m, k);
  pe_chart_compact(m->chart, k->row);
  m->positions = PE_MATCHER_START, m->threads = 0;
  for (size_t p = PE_MATCHER_START; p < positions; p++)
    if (k->position[p]) {
      k->position[p] = (uint32_t)m->positions;
      move_position(m, m->position[p], k->row);
    }
  for (size_t i = 0; i <= m->steps; i++)
    if (m->past[i] != PE_MATCHER_DEAD) m->past[i] = k->position[m->past[i]];
  memset(m->next + PE_MATCHER_START * m->classes, 0,
         (m->positions - PE_MATCHER_START) * m->classes * sizeof *m->next);
  memset(m->slot, 0, m->slots * sizeof *m->slot);
  for (size_t p = PE_MATCHER_START; p < m->positions; p++) m->slot[slot_of(m, p)] = (uint32_t)p;
}

pe_status pe_matcher_compact(pe_matcher *m, pe_error *err) {
  const uint64_t used = used_bytes(m);
  if (used < PE_MATCHER_SOME || used < 2 * m->compacted) return PE_OK;
  kept k = {pe_calloc(m->positions, sizeof *k.position),
            pe_calloc(pe_chart_rows(m->chart), sizeof *k.row)};
  if (k.position && k.row) compact(m, &k);
  const bool good = k.position && k.row;
  pe_free(k.position), pe_free(k.row);
  m->compacted = used_bytes(m);
  return good ? PE_OK : no_memory(err);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A position that is being made. */
typedef struct making {
  pe_matcher_thread thread[PE_MATCHER_THREADS + 1];
  pe_chart_end scan[PE_MATCHER_THREADS];
  size_t threads, scans;
} making;

/* The row after all lexemes that end here, and its thread. */
static pe_status add_row(pe_matcher *m, making *k, uint32_t *here, pe_error *err) {
  *here = PE_CHART_NONE;
  if (!k->scans) return PE_OK;
  pe_status rc = pe_chart_scan(m->chart, k->scan, k->scans, here, err);
  if (rc || *here == PE_CHART_NONE) return rc;
  const uint32_t start = pe_chart_row(m->chart, *here)->start;
  if (start) k->thread[k->threads++] = (pe_matcher_thread){*here, start};
  return PE_OK;
}

static pe_status step_thread(pe_matcher *m, making *k, pe_matcher_thread t, uint32_t class_index,
                             pe_error *err) {
  pe_lexer *l = m->g->lexer;
  size_t n;
  const uint32_t state = pe_lexer_next(l, t.state, class_index);
  if (!state) return PE_OK;
  if (k->threads == PE_MATCHER_THREADS)
    return pe_fail(err, PE_ELIMIT, "the text can be split into lexemes in more than %d ways",
                   PE_MATCHER_THREADS);
  if (pe_lexer_goes_on(l, state)) k->thread[k->threads++] = (pe_matcher_thread){t.row, state};
  pe_lexer_ends(l, state, &n);
  if (n) k->scan[k->scans++] = (pe_chart_end){t.row, PE_IS_LEXEME, NULL, state};
  return PE_OK;
}

/* Ends of lexemes move while states are made: they are looked up when all are. */
static void find_ends(const pe_matcher *m, making *k) {
  for (size_t i = 0; i < k->scans; i++)
    k->scan[i].index = pe_lexer_ends(m->g->lexer, (uint32_t)k->scan[i].n, &k->scan[i].n);
}

static void sort_threads(making *k) { /* by row; nearly sorted, and few */
  for (size_t i = 1; i < k->threads; i++)
    for (size_t j = i; j > 0 && k->thread[j - 1].row > k->thread[j].row; j--) {
      const pe_matcher_thread t = k->thread[j];
      k->thread[j] = k->thread[j - 1], k->thread[j - 1] = t;
    }
}

/* Where a class of bytes leads from a position; the grammar's mutex is held. */
static pe_status make_step(pe_matcher *m, uint32_t from, uint32_t class_index, uint32_t *to,
                           pe_error *err) {
  making k;
  uint32_t here;
  pe_status rc = PE_OK;
  k.threads = k.scans = 0;
  for (uint32_t i = 0; !rc && i < m->position[from].threads; i++)
    rc = step_thread(m, &k, m->thread[m->position[from].first + i], class_index, err);
  if (!rc) rc = pe_lexer_status(m->g->lexer, err);
  if (rc) return rc;
  find_ends(m, &k);
  rc = add_row(m, &k, &here, err);
  if (rc) return rc;
  sort_threads(&k);
  *to = PE_MATCHER_DEAD;
  if (!k.threads && here == PE_CHART_NONE) return PE_OK;
  return intern(m, here, k.thread, k.threads, to, err);
}

pe_status pe_matcher_make_step(pe_matcher *m, uint32_t from, uint32_t class_index, uint32_t *to,
                               pe_error *err) {
  pe_grammar_lock(m->g);
  pe_status rc = make_step(m, from, class_index, to, err);
  pe_grammar_unlock(m->g);
  if (!rc) m->next[from * m->classes + class_index] = *to;
  return rc;
}

/* The position after a token symbol. */
static pe_status step_token(pe_matcher *m, uint32_t id, uint32_t *to, pe_error *err) {
  const uint32_t from = m->position[pe_matcher_at(m)].here;
  making k;
  uint32_t here = PE_CHART_NONE;
  *to = PE_MATCHER_DEAD;
  if (from == PE_CHART_NONE || id > 0x3fffffff) return PE_OK;
  k.threads = 0, k.scans = 1;
  k.scan[0] = (pe_chart_end){from, PE_IS_TOKEN, &id, 1};
  pe_grammar_lock(m->g);
  pe_status rc = add_row(m, &k, &here, err);
  pe_grammar_unlock(m->g);
  if (rc || here == PE_CHART_NONE) return rc;
  return intern(m, here, k.thread, k.threads, to, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

void pe_matcher_close(pe_matcher *m) {
  if (!m) return;
  pe_chart_close(m->chart);
  pe_free(m->position), pe_free(m->thread), pe_free(m->next), pe_free(m->slot), pe_free(m->past);
  for (size_t i = 0; i < PE_MATCHER_MASKS; i++) pe_free(m->kept[i].allow);
  pe_tokmask_release(m->mask);
  pe_grammar_release(m->g);
  pe_free(m);
}

static pe_status start(pe_matcher *m, pe_error *err) {
  pe_grammar_lock(m->g);
  pe_status rc = pe_chart_open(m->g, &m->chart, err);
  pe_grammar_unlock(m->g);
  if (rc) return rc;
  const pe_matcher_thread t = {PE_CHART_FIRST, pe_chart_row(m->chart, PE_CHART_FIRST)->start};
  uint32_t at;
  m->positions = PE_MATCHER_DEAD;
  rc = make_room(m, 0, err);
  if (rc) return rc;
  m->position[m->positions] = (pe_matcher_position){.here = PE_CHART_NONE};
  for (uint32_t c = 0; c < m->classes; c++) m->next[m->classes + c] = PE_MATCHER_DEAD;
  m->positions++;
  rc = intern(m, PE_CHART_FIRST, &t, t.state != 0, &at, err);
  if (!rc) rc = pe_grow(&m->past, &m->past_cap, 1, sizeof *m->past, err);
  if (!rc) m->past[0] = at;
  return rc;
}

pe_status pe_matcher_open(pe_grammar *g, pe_tokmask *mask, pe_matcher **out, pe_error *err) {
  pe_status rc = mask ? pe_tokmask_build(mask, err) : PE_OK;
  if (rc) return rc;
  pe_matcher *m = pe_calloc(1, sizeof *m);
  if (!m) return no_memory(err);
  m->g = pe_grammar_retain(g);
  m->mask = mask ? pe_tokmask_retain(mask) : NULL;
  m->classes = pe_lexer_classes(g->lexer);
  m->class_of = pe_lexer_class_of(g->lexer);
  rc = start(m, err);
  if (rc)
    pe_matcher_close(m);
  else
    *out = m;
  return rc;
}

static void *copied(const void *from, size_t n, size_t size, size_t *cap) {
  void *p = pe_alloc((n + 1) * size);
  if (p && n) memcpy(p, from, n * size);
  *cap = n + 1;
  return p;
}

pe_status pe_matcher_fork(const pe_matcher *from, pe_matcher **out, pe_error *err) {
  pe_matcher *m = pe_calloc(1, sizeof *m);
  if (!m) return no_memory(err);
  size_t slots;
  *m = (pe_matcher){.g = pe_grammar_retain(from->g),
                    .mask = from->mask ? pe_tokmask_retain(from->mask) : NULL,
                    .classes = from->classes,
                    .class_of = from->class_of,
                    .positions = from->positions,
                    .threads = from->threads,
                    .slots = from->slots,
                    .steps = from->steps,
                    .compacted = from->compacted};
  m->position = copied(from->position, m->positions, sizeof *m->position, &m->position_cap);
  m->thread = copied(from->thread, m->threads, sizeof *m->thread, &m->thread_cap);
  m->next = copied(from->next, m->positions * m->classes, sizeof *m->next, &m->next_cap);
  m->slot = copied(from->slot, m->slots, sizeof *m->slot, &slots);
  m->past = copied(from->past, m->steps + 1, sizeof *m->past, &m->past_cap);
  pe_status rc = m->position && m->thread && m->next && m->slot && m->past ? PE_OK : no_memory(err);
  if (!rc) rc = pe_chart_copy(from->chart, &m->chart, err);
  if (rc)
    pe_matcher_close(m);
  else
    *out = m;
  return rc;
}

uint64_t pe_matcher_bytes(const pe_matcher *m) {
  size_t masks = 0;
  for (size_t i = 0; i < PE_MATCHER_MASKS; i++) masks += m->kept[i].allow != NULL;
  return sizeof *m + (masks ? masks * pe_tokmask_words(m->mask) * sizeof(uint32_t) : 0) +
         pe_chart_bytes(m->chart) + m->position_cap * sizeof *m->position +
         m->thread_cap * sizeof *m->thread + m->next_cap * sizeof *m->next +
         m->slots * sizeof *m->slot + m->past_cap * sizeof *m->past;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static pe_status walk(pe_matcher *m, pe_str bytes, size_t *taken, uint32_t *at, pe_error *err) {
  for (*taken = 0; *taken < bytes.len; ++*taken) {
    uint32_t next;
    pe_status rc = pe_matcher_step(m, *at, (uint8_t)bytes.at[*taken], &next, err);
    if (rc) return rc;
    if (next == PE_MATCHER_DEAD) return PE_OK;
    *at = next;
  }
  return PE_OK;
}

static pe_status push(pe_matcher *m, uint32_t at, pe_error *err) {
  pe_status rc = pe_grow(&m->past, &m->past_cap, m->steps + 2, sizeof *m->past, err);
  if (!rc) m->past[++m->steps] = at;
  return rc;
}

pe_status pe_matcher_feed(pe_matcher *m, pe_str bytes, size_t *taken, pe_error *err) {
  pe_status rc = pe_matcher_compact(m, err);
  uint32_t at = pe_matcher_at(m);
  *taken = 0;
  if (!rc) rc = walk(m, bytes, taken, &at, err);
  return rc || *taken < bytes.len ? rc : push(m, at, err);
}

pe_status pe_matcher_take(pe_matcher *m, int32_t id, bool *ok, pe_error *err) {
  const pe_str text = m->mask ? pe_tokmask_text(m->mask, id) : (pe_str){0};
  pe_status rc = pe_matcher_compact(m, err);
  uint32_t at = pe_matcher_at(m);
  *ok = false;
  if (rc) return rc;
  if (text.at) {
    size_t taken;
    rc = walk(m, text, &taken, &at, err);
    if (rc || taken < text.len) return rc;
  } else {
    const bool ends = m->mask && pe_tokmask_is_end(m->mask, id) && pe_matcher_complete(m);
    if (id < 0) return PE_OK;
    rc = step_token(m, (uint32_t)id, &at, err);
    if (rc || (at == PE_MATCHER_DEAD && !ends)) return rc;
  }
  rc = push(m, at, err);
  *ok = !rc;
  return rc;
}

pe_status pe_matcher_restart(pe_matcher *m, pe_error *err) {
  return push(m, PE_MATCHER_START, err);
}

bool pe_matcher_complete(const pe_matcher *m) {
  const uint32_t here = m->position[pe_matcher_at(m)].here;
  return here != PE_CHART_NONE && pe_chart_row(m->chart, here)->complete;
}

size_t pe_matcher_length(const pe_matcher *m) { return m->steps; }

void pe_matcher_trim(pe_matcher *m, size_t length) {
  if (length < m->steps) m->steps = length;
}

/* ---- what must come -------------------------------------------------------------------------- */

/* The only byte that can follow a position, or -1; *n: how many can, counted up to two. */
static pe_status only_byte(pe_matcher *m, uint32_t at, int *byte, int *n, pe_error *err) {
  *n = 0, *byte = -1;
  for (int b = 0; b < 256 && *n < 2; b++) {
    uint32_t next;
    pe_status rc = pe_matcher_step(m, at, (uint8_t)b, &next, err);
    if (rc) return rc;
    if (next != PE_MATCHER_DEAD) *byte = b, ++*n;
  }
  return PE_OK;
}

static bool may_end(const pe_matcher *m, uint32_t at) { /* or go on with a token symbol */
  const uint32_t here = m->position[at].here;
  if (here == PE_CHART_NONE) return false;
  const pe_row *r = pe_chart_row(m->chart, here);
  return r->complete || r->has_token;
}

pe_status pe_matcher_forced(pe_matcher *m, size_t most, pe_buf *out, pe_error *err) {
  pe_status rc = pe_matcher_compact(m, err);
  uint32_t at = pe_matcher_at(m);
  for (size_t i = 0; !rc && i < most && !may_end(m, at); i++) {
    int byte, n;
    rc = only_byte(m, at, &byte, &n, err);
    if (!rc && n != 1) return PE_OK;
    if (!rc) rc = pe_buf_byte(out, (char)byte, err);
    if (!rc) rc = pe_matcher_step(m, at, (uint8_t)byte, &at, err);
  }
  return rc;
}

pe_status pe_matcher_is_over(pe_matcher *m, bool *over, pe_error *err) {
  const uint32_t here = m->position[pe_matcher_at(m)].here;
  int byte, n = 0;
  *over = false;
  if (!pe_matcher_complete(m) || pe_chart_row(m->chart, here)->has_token) return PE_OK;
  pe_status rc = only_byte(m, pe_matcher_at(m), &byte, &n, err);
  *over = !rc && n == 0;
  return rc;
}
