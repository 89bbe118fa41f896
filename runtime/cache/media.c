/* media.c - see media.h. */
#include "runtime/cache/media.h"

#include <string.h>

#include "runtime/hash.h"

/* ---- checking -------------------------------------------------------------------------------- */

static pe_status check_item(const pe_media_spec *s, int32_t i, pe_error *err) {
  const pe_media_item *m = &s->item[i];
  const int32_t planes = s->item[0].planes;
  if (m->at < 0 || m->at >= s->tokens)
    return pe_fail_field(err, PE_EARG, "media",
                         "media[%d]: at must be between 1 and the prompt's %d tokens, got %d",
                         i + 1, s->tokens, m->at + 1);
  if (m->tokens < 1)
    return pe_fail_field(err, PE_EARG, "media", "media[%d]: tokens must be 1 or more, got %d",
                         i + 1, m->tokens);
  if (m->planes != planes || planes < 1 || planes > PE_FEATURE_PLANES)
    return pe_fail_field(err, PE_EARG, "media",
                         "media[%d] has %d planes of features, media[1] has %d (1 to %d)", i + 1,
                         m->planes, planes, PE_FEATURE_PLANES);
  const uint64_t need = (uint64_t)m->tokens * (uint64_t)s->width * sizeof(float);
  for (int p = 0; p < planes; p++) {
    const pe_media_plane *v = &m->plane[p];
    uint64_t have = v->buffer && v->offset <= v->buffer->size ? v->buffer->size - v->offset : 0;
    if (have < need || v->offset % sizeof(float))
      return pe_fail_field(err, PE_ESHAPE, "media",
                           "media[%d]: features of %d tokens need %llu bytes, got %llu", i + 1,
                           m->tokens, (unsigned long long)need, (unsigned long long)have);
  }
  return PE_OK;
}

static pe_status check_positions(const pe_media_spec *s, pe_error *err) {
  if (!s->position) return PE_OK;
  for (int64_t i = 0; i < 3 * (int64_t)s->tokens; i++)
    if (s->position[i] < 0)
      return pe_fail_field(err, PE_EARG, "positions", "positions[%d][%d] must be 0 or more, got %d",
                           (int)(i / s->tokens) + 1, (int)(i % s->tokens) + 1, s->position[i]);
  if ((int64_t)s->delta < -(int64_t)s->tokens || s->delta > INT32_MAX / 2)
    return pe_fail_field(err, PE_EARG, "rope_delta", "rope_delta must be between %d and %d, got %d",
                         -s->tokens, INT32_MAX / 2, s->delta);
  return PE_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Finds the placeholders of item i; `from`: the first token after the item before. Fills `run`
 * unless it is NULL. Returns the number of runs, -1 with an error if there are too few tokens. */
static int32_t find_runs(const pe_media_spec *s, int32_t i, int32_t *from, pe_media_run *run,
                         pe_error *err) {
  const pe_media_item *m = &s->item[i];
  int32_t found = 0, runs = 0, t = m->at;
  if (t < *from) {
    pe_fail_field(err, PE_EARG, "media", "media[%d] starts at token %d, inside media[%d]", i + 1,
                  t + 1, i);
    return -1;
  }
  const int32_t placeholder = s->prompt[t];
  for (; t < s->tokens && found < m->tokens; t++) {
    if (s->prompt[t] != placeholder) continue;
    bool more = runs && t && s->prompt[t - 1] == placeholder;
    if (!more) {
      if (run) run[runs] = (pe_media_run){.at = t, .item = i, .line = found};
      runs++;
    }
    if (run) run[runs - 1].count++;
    found++;
  }
  if (found < m->tokens) {
    pe_fail_field(err, PE_EARG, "media",
                  "media[%d] has %d tokens, but the prompt has %d placeholders (id %d) from token "
                  "%d on",
                  i + 1, m->tokens, found, placeholder, m->at + 1);
    return -1;
  }
  *from = t;
  return runs;
}

static pe_status make_runs(const pe_media_spec *s, pe_media *m, pe_error *err) {
  int32_t from = 0, n = 0, k;
  for (int32_t i = 0; i < s->items; i++, n += k)
    if ((k = find_runs(s, i, &from, NULL, err)) < 0) return PE_EARG;
  if (!(m->run = pe_arena_calloc(&m->arena, (size_t)n + 1, sizeof *m->run)))
    return pe_nomem(err, "media");
  from = 0;
  for (int32_t i = 0; i < s->items; i++) m->runs += find_runs(s, i, &from, m->run + m->runs, err);
  for (int32_t i = 0; i < n; i++)
    if (m->item[m->run[i].item].whole && m->run[i].count > m->longest) m->longest = m->run[i].count;
  return PE_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Where a later row of the item, or the row after it, is placed relative to its first row also
 * decides what is cached. */
static pe_status make_names(pe_media *m, pe_error *err) {
  pe_buf places = {0};
  pe_status rc = PE_OK;
  for (int32_t i = 0, r = 0; !rc && i < m->items; i++) {
    const int32_t first = m->run[r].at;
    places.len = 0;
    for (; !rc && r < m->runs && m->run[r].item == i; r++)
      for (int32_t t = m->run[r].at; !rc && t <= m->run[r].at + m->run[r].count; t++)
        for (int axis = 0; !rc && axis < 3; axis++) {
          int32_t place = pe_media_position(m, axis, t) - pe_media_position(m, axis, first);
          rc = pe_buf_put(&places, &place, sizeof place, err);
        }
    pe_name *name = &m->name[i];
    *name = (pe_name){.tokens = m->item[i].tokens, .whole = m->item[i].whole};
    memcpy(name->hash, m->item[i].hash, sizeof name->hash);
    if (m->position) pe_hash_128(places.data, places.len, 0, name->layout);
  }
  pe_buf_free(&places);
  return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status copy_all(const pe_media_spec *s, pe_media *m, pe_error *err) {
  const size_t places = 3 * (size_t)s->tokens * sizeof *m->position;
  m->item = pe_arena_calloc(&m->arena, (size_t)s->items + 1, sizeof *m->item);
  m->name = pe_arena_calloc(&m->arena, (size_t)s->items + 1, sizeof *m->name);
  if (s->position) m->position = pe_arena_alloc(&m->arena, places);
  if (!m->item || !m->name || (s->position && !m->position)) return pe_nomem(err, "media");
  if (s->position) memcpy(m->position, s->position, places);
  for (; m->items < s->items; m->items++) {
    pe_media_item *to = &m->item[m->items];
    *to = s->item[m->items];
    for (int p = 0; p < to->planes; p++) pe_buffer_retain(to->plane[p].buffer);
    m->bytes += (uint64_t)to->tokens * (uint64_t)s->width * sizeof(float) * (uint64_t)to->planes;
  }
  return PE_OK;
}

pe_status pe_media_open(const pe_media_spec *s, pe_media **out, pe_error *err) {
  pe_status rc = check_positions(s, err);
  for (int32_t i = 0; !rc && i < s->items; i++) rc = check_item(s, i, err);
  if (rc) return rc;
  pe_media *m = pe_calloc(1, sizeof *m);
  if (!m) return pe_nomem(err, "media");
  m->refs = 1, m->tokens = s->tokens, m->width = s->width, m->delta = s->delta;
  m->planes = s->items ? s->item[0].planes : 0;
  rc = copy_all(s, m, err);
  if (!rc) rc = make_runs(s, m, err);
  if (!rc) rc = make_names(m, err);
  if (rc)
    pe_media_release(m);
  else
    *out = m;
  return rc;
}

pe_media *pe_media_retain(pe_media *m) {
  if (m) __atomic_fetch_add(&m->refs, 1, __ATOMIC_RELAXED);
  return m;
}

void pe_media_release(pe_media *m) {
  if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
  for (int32_t i = 0; i < m->items; i++)
    for (int p = 0; p < m->item[i].planes; p++) pe_buffer_release(m->item[i].plane[p].buffer);
  pe_arena_free(&m->arena);
  pe_free(m);
}

/* ---- asking ---------------------------------------------------------------------------------- */

int32_t pe_media_next(const pe_media *m, int32_t index) {
  int32_t low = 0, high = m->runs;
  while (low < high) {
    int32_t mid = low + (high - low) / 2;
    if (m->run[mid].at + m->run[mid].count <= index)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

const pe_media_run *pe_media_cut(const pe_media *m, int32_t index) {
  if (!m || !m->longest) return NULL;
  int32_t i = pe_media_next(m, index);
  const pe_media_run *r = &m->run[i];
  return i < m->runs && m->item[r->item].whole && r->at < index ? r : NULL;
}

int32_t pe_media_position(const pe_media *m, int axis, int32_t index) {
  if (!m || !m->position) return index;
  if (index < m->tokens) return m->position[(int64_t)axis * m->tokens + index];
  return index + m->delta;
}

void pe_media_words(const pe_media *m, const int32_t *names, int32_t from, int32_t count,
                    int32_t *word) {
  for (int32_t i = pe_media_next(m, from); i < m->runs && m->run[i].at < from + count; i++) {
    const pe_media_run *r = &m->run[i];
    int32_t t = r->at > from ? r->at : from;
    for (; t < r->at + r->count && t < from + count; t++) word[t - from] = names[r->item];
  }
}
