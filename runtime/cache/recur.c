/* recur.c - see recur.h. */
#include "runtime/cache/recur.h"

#include <assert.h>
#include <string.h>

pe_status pe_recur_open(const pe_graph *g, int32_t slots, pe_recur **out, pe_error *err) {
  uint64_t bytes;
  if (slots < 1 || !pe_mul_size((uint64_t)slots, (uint64_t)g->state_floats * sizeof(float), &bytes))
    return pe_fail(err, PE_ELIMIT, "cannot allocate %d recurrent states of %lld floats", slots,
                   (long long)g->state_floats);
  pe_recur *r = pe_calloc(1, sizeof *r);
  if (!r) return pe_nomem(err, "states");
  r->slots = r->free_count = slots, r->slot_floats = g->state_floats;
  pe_status rc = PE_OK;
  if (!(r->free_list = pe_calloc((size_t)slots, sizeof(int32_t)))) rc = pe_nomem(err, "states");
  for (int32_t i = 0; !rc && i < slots; i++) r->free_list[i] = slots - 1 - i;
  if (!rc) rc = pe_buffer_reserve(bytes, &r->memory, err);
  if (rc) {
    pe_recur_close(r);
    return rc;
  }
  r->data = (float *)(void *)r->memory->data;
  *out = r;
  return PE_OK;
}

void pe_recur_close(pe_recur *r) {
  if (!r) return;
  pe_buffer_release(r->memory);
  pe_free(r->free_list);
  pe_free(r);
}

uint64_t pe_recur_bytes(const pe_recur *r) { return (uint64_t)r->slot_floats * sizeof(float); }

float *pe_recur_slot(const pe_recur *r, int32_t slot) {
  assert(!r->busy || !r->slot_floats);
  return r->data + (int64_t)slot * r->slot_floats;
}

pe_status pe_recur_take(pe_recur *r, int32_t *slot, pe_error *err) {
  if (!r->free_count)
    return pe_fail(err, PE_ELIMIT, "all %d recurrent states are in use", r->slots);
  *slot = r->free_list[--r->free_count];
  pe_recur_zero(r, *slot);
  return PE_OK;
}

void pe_recur_give(pe_recur *r, int32_t slot) { r->free_list[r->free_count++] = slot; }
void pe_recur_zero(pe_recur *r, int32_t slot) {
  memset(pe_recur_slot(r, slot), 0, pe_recur_bytes(r));
}
void pe_recur_copy(pe_recur *r, int32_t from, int32_t to) {
  memmove(pe_recur_slot(r, to), pe_recur_slot(r, from), pe_recur_bytes(r));
}

/* ---- snapshots ------------------------------------------------------------------------------- */

pe_status pe_recur_snapshot(const pe_recur *r, int32_t slot, int32_t position, pe_snapshot **out,
                            pe_error *err) {
  *out = NULL;
  if (!r->slot_floats) return PE_OK;
  pe_snapshot *s = pe_alloc(sizeof *s + pe_recur_bytes(r));
  if (!s) return pe_nomem(err, "snapshot");
  s->refs = 1, s->position = position;
  memcpy(s->data, pe_recur_slot(r, slot), pe_recur_bytes(r));
  *out = s;
  return PE_OK;
}

void pe_recur_restore(pe_recur *r, int32_t slot, const pe_snapshot *s) {
  if (s) memcpy(pe_recur_slot(r, slot), s->data, pe_recur_bytes(r));
}

pe_snapshot *pe_snapshot_retain(pe_snapshot *s) {
  if (s) s->refs++;
  return s;
}

void pe_snapshot_release(pe_snapshot *s) {
  if (s && !--s->refs) pe_free(s);
}
