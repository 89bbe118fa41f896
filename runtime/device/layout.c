/* layout.c - see layout.h. */
#include "runtime/device/layout.h"

#include <string.h>

enum { ARRAYS = 11 };

static void arrays_of(pe_layout *l, pe_buf *out[ARRAYS]) {
  pe_buf *const all[ARRAYS] = {&l->token,   &l->position, &l->segment_of, &l->segment,
                               &l->output,  &l->tables,   &l->table_at,   &l->features,
                               &l->feature, &l->last,     &l->wanted};
  memcpy(out, all, sizeof all);
}

void pe_layout_free(pe_layout *l) {
  pe_buf *arrays[ARRAYS];
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) pe_buf_free(arrays[i]);
}

static pe_status put_tables(pe_layout *l, int32_t groups, const pe_run *r, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < groups; g++) {
    if ((rc = pe_buf_int(&l->table_at, (int32_t)(l->tables.len / sizeof(int32_t)), err))) break;
    rc = pe_buf_put(&l->tables, r->kv->table[g], (size_t)r->kv->count[g] * sizeof(int32_t), err);
  }
  return rc;
}

static pe_status put_run(pe_layout *l, int32_t groups, const pe_run *r, int32_t index,
                         pe_error *err) {
  pe_segment s = {.first = l->step.rows,
                  .count = r->count,
                  .past = r->past,
                  .slot = r->slot,
                  .rope_length = r->rope_length,
                  .table = index * groups};
  pe_status rc = pe_buf_put(&l->segment, &s, sizeof s, err);
  for (int32_t i = 0; !rc && i < r->count; i++)
    rc = pe_buf_int(&l->token, pe_word_is_name(r->token[i]) ? 0 : r->token[i], err);
  for (int32_t i = 0; !rc && i < r->count; i++) rc = pe_buf_int(&l->segment_of, index, err);
  for (int32_t i = r->count - r->outputs; !rc && i < r->count; i++)
    if (!(rc = pe_buf_int(&l->output, s.first + i, err)))
      rc = pe_buf_put(&l->wanted, &r->wanted, sizeof r->wanted, err);
  if (!rc) rc = put_tables(l, groups, r, err);
  l->step.rows += r->count, l->step.outputs += r->outputs;
  return rc;
}

static pe_status put_positions(pe_layout *l, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  for (int axis = 0; axis < 3; axis++)
    for (int32_t k = 0; k < count; k++)
      for (int32_t i = 0; !rc && i < runs[k].count; i++)
        rc =
            pe_buf_int(&l->position, pe_media_position(runs[k].media, axis, runs[k].past + i), err);
  return rc;
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* The run of pictures that a token of r belongs to, or NULL; *at is the next candidate. */
static const pe_media_run *picture_of(const pe_run *r, int32_t token, int32_t *at) {
  const pe_media *m = r->media;
  while (*at < m->runs && m->run[*at].at + m->run[*at].count <= token) ++*at;
  return *at < m->runs && m->run[*at].at <= token ? &m->run[*at] : NULL;
}

static bool has_pictures(const pe_run *r, bool whole) {
  const pe_media *m = r->media;
  int32_t i = m && (!whole || m->longest) ? pe_media_next(m, r->past) : 0;
  return m && i < m->runs && m->run[i].at < r->past + r->count && (!whole || m->longest);
}

static pe_status put_feature(pe_layout *l, const pe_run *r, const pe_media_run *p, int32_t token,
                             pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < l->step.feature_planes; i++)
    rc = pe_buf_put(&l->features, pe_media_feature(r->media, p, i, token),
                    (size_t)l->step.feature_width * sizeof(float), err);
  return rc;
}

/* Gathers the features of the step and numbers their lines. */
static pe_status put_features(pe_layout *l, const pe_run *runs, int32_t count, pe_error *err) {
  int32_t lines = 0;
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) {
    const pe_run *r = &runs[k];
    int32_t at = r->media ? pe_media_next(r->media, r->past) : 0;
    for (int32_t i = 0; !rc && i < r->count; i++) {
      const pe_media_run *p = r->media ? picture_of(r, r->past + i, &at) : NULL;
      rc = pe_buf_int(&l->feature, p ? lines++ : -1, err);
      if (!rc && p) rc = put_feature(l, r, p, r->past + i, err);
    }
  }
  return rc;
}

/* The last token that each row sees where attention follows spans. */
static pe_status put_last(pe_layout *l, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) {
    const pe_run *r = &runs[k];
    int32_t at = r->media ? pe_media_next(r->media, r->past) : 0;
    for (int32_t i = r->past; !rc && i < r->past + r->count; i++) {
      const pe_media_run *p = r->media ? picture_of(r, i, &at) : NULL;
      int32_t last = p && r->media->item[p->item].whole ? p->at + p->count - 1 : i;
      if (last - i > l->step.ahead) l->step.ahead = last - i;
      rc = pe_buf_int(&l->last, last, err);
    }
  }
  return rc;
}

/* Every name in the tokens has features, of the same size in the whole step, and no picture that
 * must stay whole is cut. */
static pe_status check_pictures(pe_layout *l, const pe_run *r, int32_t index, pe_error *err) {
  const pe_media *m = r->media;
  int32_t at = m ? pe_media_next(m, r->past) : 0;
  for (int32_t i = 0; i < r->count; i++)
    if (pe_word_is_name(r->token[i]) && !(m && picture_of(r, r->past + i, &at)))
      return pe_fail(err, PE_EARG, "sequence %d of the step has no features for token %d", index,
                     r->past + i);
  if (!has_pictures(r, false)) return PE_OK;
  const pe_media_run *cut = pe_media_cut(m, r->past);
  if (!cut) cut = pe_media_cut(m, r->past + r->count);
  if (cut)
    return pe_fail(err, PE_EARG,
                   "sequence %d of the step: tokens %d to %d cut a picture of %d tokens", index,
                   r->past, r->past + r->count - 1, cut->count);
  pe_step *s = &l->step;
  if (!s->feature_planes) s->feature_planes = m->planes, s->feature_width = m->width;
  if (s->feature_planes == m->planes && s->feature_width == m->width) return PE_OK;
  return pe_fail(err, PE_ESHAPE, "features of %d planes of %d in a step with %d planes of %d",
                 m->planes, m->width, s->feature_planes, s->feature_width);
}

static pe_status put_pictures(pe_layout *l, const pe_run *runs, int32_t count, pe_error *err) {
  bool whole = false;
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) {
    rc = check_pictures(l, &runs[k], k, err);
    whole |= has_pictures(&runs[k], true);
  }
  if (rc || !l->step.feature_planes) return rc;
  rc = put_features(l, runs, count, err);
  return rc || !whole ? rc : put_last(l, runs, count, err);
}

/* ---- the step -------------------------------------------------------------------------------- */

static pe_status check_run(const pe_kv *kv, const pe_run *r, int32_t index, pe_error *err) {
  if (r->count < 1 || r->outputs < 0 || r->outputs > r->count || r->past < 0)
    return pe_fail(err, PE_EARG, "sequence %d of the step has %d tokens after %d, logits for %d",
                   index, r->count, r->past, r->outputs);
  const int64_t block = kv->block, end = (int64_t)r->past + r->count;
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    if (r->kv->count[g] * block < end)
      return pe_fail(err, PE_EARG,
                     "sequence %d of the step needs block tables for %lld tokens, got %lld", index,
                     (long long)end, (long long)(r->kv->count[g] * block));
    for (int64_t b = r->past / block; b * block < end; b++)
      if (r->kv->table[g][b] < 0)
        return pe_fail(err, PE_EARG, "sequence %d of the step has no block for token %lld", index,
                       (long long)(b * block));
  }
  return PE_OK;
}

/* The arrays may have moved while they grew, so the pointers of the step are set last. */
static void point_step(pe_layout *l) {
  pe_step *s = &l->step;
  s->token = (const int32_t *)(void *)l->token.data;
  s->position = (const int32_t *)(void *)l->position.data;
  s->segment_of = (const int32_t *)(void *)l->segment_of.data;
  s->segment = (const pe_segment *)(void *)l->segment.data;
  s->output = (const int32_t *)(void *)l->output.data;
  s->wanted = (const pe_wanted *)(void *)l->wanted.data;
  s->tables = (const int32_t *)(void *)l->tables.data;
  s->table_count = (int32_t)(l->tables.len / sizeof(int32_t));
  s->table_at = (const int32_t *)(void *)l->table_at.data;
  if (l->features.len) {
    s->features = (const float *)(void *)l->features.data;
    s->feature = (const int32_t *)(void *)l->feature.data;
  }
  if (l->last.len) s->last = (const int32_t *)(void *)l->last.data;
}

pe_status pe_layout_step(pe_layout *l, const pe_kv *kv, const pe_run *runs, int32_t count,
                         pe_error *err) {
  const int32_t groups = kv->graph->group_count;
  pe_buf *arrays[ARRAYS];
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) arrays[i]->len = 0;
  l->step = (pe_step){.segments = count, .groups = groups};
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) rc = check_run(kv, &runs[k], k, err);
  for (int32_t k = 0; !rc && k < count; k++) rc = put_run(l, groups, &runs[k], k, err);
  if (!rc) rc = put_positions(l, runs, count, err);
  if (!rc) rc = put_pictures(l, runs, count, err);
  point_step(l);
  return rc;
}
