/* fake_backend.h - a backend for tests, over the CPU's. It does the work of a step only when it is
 * waited for, so a reader that does not wait sees the results of an older step; it notices when the
 * memory of the caches has changed in between; and any of its calls can be made to fail, whereupon
 * everything that the step was to write is full of NaN.
 *
 * Threads: the counters are read and set while no step runs; the permits at any time. */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include "check.h"
#include "runtime/device/device.h"
#include "runtime/hash.h"

#include <sched.h>

typedef struct fake { /* after the CPU's struct */
  uint64_t caches;    /* what they were when the step was submitted */
  bool begun;         /* the CPU works on it */
} fake;

static int64_t fake_calls;       /* of submit and wait, all devices */
static int64_t fake_fails_at;    /* the first call that fails; 0: none */
static int64_t fake_fails_until; /* and the last one */
static _Atomic int fake_permits; /* waits that return; below 0: all */
static int64_t fake_changes;     /* steps whose caches changed before they were computed */

static inline fake *fake_of(pe_device *d) {
  return (fake *)(void *)((char *)d + (pe_backend_cpu.size + 63) / 64 * 64);
}

static inline uint64_t fake_caches(const pe_device *d) {
  uint64_t sum = d->kv ? pe_hash(d->kv->memory->data, d->kv->memory->size) : 0;
  if (d->recur) sum ^= pe_hash_u64(pe_hash(d->recur->memory->data, d->recur->memory->size));
  return sum;
}

static inline bool fake_fails(void) {
  fake_calls++;
  return fake_fails_at && fake_calls >= fake_fails_at && fake_calls <= fake_fails_until;
}

static inline pe_status fake_failure(pe_error *err) {
  return pe_fail(err, PE_EIO, "the device failed at call %lld", (long long)fake_calls);
}

/* The blocks and slots that the step was to write belong to its sequences alone. */
static inline void fake_spoil(pe_device *d) {
  const pe_step *s = d->step;
  for (int32_t i = 0; d->kv && i < s->segments; i++) {
    const pe_segment *g = &s->segment[i];
    if (d->recur->slot_floats)
      memset(d->recur->data + g->slot * d->recur->slot_floats, 255, pe_recur_bytes(d->recur));
    for (int32_t k = 0; k < s->groups; k++)
      for (int32_t t = g->past / d->kv->block; t * d->kv->block < g->past + g->count; t++) {
        const int32_t block = s->tables[s->table_at[g->table + k] + t];
        memset(d->kv->memory->data + d->kv->at[k] + (uint64_t)block * d->kv->step[k], 255,
               d->kv->step[k]);
      }
  }
}

static inline pe_status fake_submit(pe_device *d, pe_error *err) {
  fake *f = fake_of(d);
  f->begun = false;
  if (fake_fails()) return fake_failure(err);
  f->caches = fake_caches(d);
  return PE_OK;
}

static inline pe_status fake_wait(pe_device *d, int64_t until_ns, bool *done, pe_error *err) {
  fake *f = fake_of(d);
  while (fake_permits == 0) sched_yield();
  if (fake_permits > 0) fake_permits--;
  if (fake_fails()) {
    fake_spoil(d);
    return fake_failure(err);
  }
  if (!f->begun) {
    fake_changes += f->caches != fake_caches(d);
    pe_status rc = pe_backend_cpu.submit(d, err);
    if (rc) return rc;
  }
  f->begun = true;
  return pe_backend_cpu.wait(d, until_ns, done, err);
}

/* Forgets what an earlier test has asked for. */
static inline const pe_backend *fake_backend(void) {
  static pe_backend backend;
  backend = pe_backend_cpu;
  backend.name = "fake", backend.profile = NULL;
  backend.size = (pe_backend_cpu.size + 63) / 64 * 64 + sizeof(fake);
  backend.submit = fake_submit, backend.wait = fake_wait;
  fake_calls = fake_fails_at = fake_fails_until = fake_changes = 0, fake_permits = -1;
  return &backend;
}

static inline void fake_fail(int64_t from, int64_t calls) {
  fake_calls = 0, fake_fails_at = from, fake_fails_until = from + calls - 1;
}

#endif
