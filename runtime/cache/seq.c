/* seq.c - see seq.h. */
#include "runtime/cache/seq.h"

#include <string.h>

pe_status pe_seq_open(pe_seq *s, pe_kv *kv, pe_recur *recur, pe_error *err) {
  *s = (pe_seq){0};
  pe_status rc = pe_recur_take(recur, &s->slot, err);
  if (!rc) s->kv = kv, s->recur = recur;
  return rc;
}

void pe_seq_close(pe_seq *s) {
  if (!s->kv) return;
  pe_kv_release(s->kv, &s->tables);
  pe_recur_give(s->recur, s->slot);
  for (int32_t i = 0; i < s->names; i++) pe_names_release(s->kv->names, s->name[i]);
  pe_free(s->name);
  pe_media_release(s->media);
  pe_free(s->token);
  *s = (pe_seq){0};
}

pe_status pe_seq_set_media(pe_seq *s, pe_media *media, pe_error *err) {
  if (!media) return PE_OK;
  if (s->count || s->name)
    return pe_fail(err, PE_EARG, "pictures must come before the first of %d tokens", s->count);
  if (!(s->name = pe_calloc((size_t)media->items + 1, sizeof *s->name)))
    return pe_nomem(err, "names of pictures");
  pe_status rc = PE_OK;
  for (; !rc && s->names < media->items; s->names += !rc)
    rc = pe_names_put(s->kv->names, &media->name[s->names], &s->name[s->names], err);
  if (!rc) s->media = pe_media_retain(media);
  return rc;
}

pe_status pe_seq_append(pe_seq *s, const int32_t *token, int32_t count, pe_error *err) {
  if (count < 0 || count > INT32_MAX - s->count)
    return pe_fail(err, PE_EARG, "cannot append %d tokens to a sequence of %d", count, s->count);
  pe_status rc =
      pe_grow(&s->token, &s->cap, (size_t)s->count + (size_t)count, sizeof *s->token, err);
  if (rc) return rc;
  if (count) memcpy(s->token + s->count, token, (size_t)count * sizeof *token);
  if (s->media) pe_media_words(s->media, s->name, s->count, count, s->token + s->count);
  s->count += count;
  return PE_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

pe_status pe_seq_run(pe_seq *s, int32_t count, int32_t outputs, pe_run *out, pe_error *err) {
  if (count < 1 || count > s->count - s->past)
    return pe_fail(err, PE_EARG, "cannot compute %d tokens: the sequence has %d left", count,
                   s->count - s->past);
  pe_status rc = pe_kv_prepare(s->kv, &s->tables, s->past, s->past + count, err);
  if (rc) return rc;
  *out = (pe_run){.token = s->token + s->past,
                  .count = count,
                  .past = s->past,
                  .outputs = outputs,
                  .slot = s->slot,
                  .rope_length = s->rope_length ? s->rope_length : s->count,
                  .media = s->media,
                  .kv = &s->tables};
  return PE_OK;
}

void pe_seq_advance(pe_seq *s, int32_t count) {
  s->past += count;
  pe_kv_retire(s->kv, &s->tables, s->past);
}

/* ---- one interface over all caches ----------------------------------------------------------- */

pe_status pe_seq_fork(const pe_seq *parent, pe_seq *child, pe_error *err) {
  pe_seq s;
  pe_status rc = pe_seq_open(&s, parent->kv, parent->recur, err);
  if (rc) return rc;
  rc = pe_seq_set_media(&s, parent->media, err);
  if (!rc) rc = pe_seq_append(&s, parent->token, parent->count, err);
  if (!rc) rc = pe_kv_fork(parent->kv, &parent->tables, &s.tables, err);
  if (rc) {
    pe_seq_close(&s);
    return rc;
  }
  pe_recur_copy(s.recur, parent->slot, s.slot);
  s.past = parent->past, s.rope_length = parent->rope_length, s.ragged = parent->ragged;
  *child = s;
  return PE_OK;
}

/* The state can move to n: it is there already, starts again, or the snapshot is at n. */
static bool state_follows(const pe_seq *s, int32_t n, const pe_snapshot *snapshot) {
  return !s->recur->slot_floats || n == s->past || n == 0 || (snapshot && snapshot->position == n);
}

static bool tables_follow(const pe_seq *s, int32_t n) {
  return n == s->past || n == 0 || (n >= s->ragged && pe_kv_can_trim(s->kv, &s->tables, n));
}

bool pe_seq_can_trim(const pe_seq *s, int32_t n, const pe_snapshot *snapshot) {
  return n >= 0 && n <= s->past && state_follows(s, n, snapshot) && tables_follow(s, n);
}

pe_status pe_seq_trim(pe_seq *s, int32_t n, const pe_snapshot *snapshot, pe_error *err) {
  if (n < 0 || n > s->past)
    return pe_fail(err, PE_EARG, "cannot trim to %d tokens: %d are computed", n, s->past);
  if (!tables_follow(s, n))
    return pe_fail(
        err, PE_EUNSUPPORTED,
        "cannot trim %d tokens to %d: a sliding window has released blocks it would need", s->past,
        n);
  if (!state_follows(s, n, snapshot))
    return pe_fail(err, PE_EUNSUPPORTED,
                   "cannot trim %d tokens to %d: a recurrent state needs a snapshot at %d, got %s",
                   s->past, n, n, snapshot ? "one at another position" : "none");
  if (s->recur->slot_floats && n != s->past) {
    if (n)
      pe_recur_restore(s->recur, s->slot, snapshot);
    else
      pe_recur_zero(s->recur, s->slot);
  }
  pe_kv_trim(s->kv, &s->tables, n);
  s->past = s->count = n;
  if (!n) s->ragged = 0;
  return PE_OK;
}

pe_status pe_seq_snapshot(const pe_seq *s, pe_snapshot **out, pe_error *err) {
  return pe_recur_snapshot(s->recur, s->slot, s->past, out, err);
}

uint64_t pe_seq_bytes(const pe_seq *s) {
  return pe_kv_seq_bytes(s->kv, &s->tables) + pe_recur_bytes(s->recur);
}
