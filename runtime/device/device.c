/* device.c - see device.h. */
#include "runtime/device/device.h"

#include "runtime/device/profile.h"

#include <assert.h>

/* ---- life ------------------------------------------------------------------------------------ */

pe_status pe_device_open(const pe_device_options *o, pe_device **out, pe_error *err) {
  const pe_backend *backend = o->backend ? o->backend : &pe_backend_cpu;
  pe_device *d = pe_calloc(1, backend->size);
  if (!d) return pe_nomem(err, "device");
  *d = (pe_device){.backend = backend,
                   .plan = o->plan,
                   .pool = o->pool,
                   .kv = o->kv,
                   .recur = o->recur,
                   .precision = o->precision,
                   .progress = o->progress};
  pe_status rc = backend->open(d, err);
  d->progress = NULL; /* borrowed until here */
  if (rc)
    pe_device_close(d);
  else
    *out = d;
  return rc;
}

/* The caches belong to the step from now on, or to the host again. */
static void set_busy(pe_device *d, bool busy) {
  if (d->kv) d->kv->busy = busy;
  if (d->recur) d->recur->busy = busy;
}

void pe_device_close(pe_device *d) {
  if (!d) return;
  d->backend->close(d);
  set_busy(d, false);
  pe_layout_free(&d->layout);
  pe_profile_close(d->profile);
  pe_free(d);
}

/* ---- steps ----------------------------------------------------------------------------------- */

pe_status pe_device_begin(pe_device *d, const pe_step *step, pe_error *err) {
  d->step = step;
  set_busy(d, true);
  pe_status rc = d->backend->submit(d, err);
  if (rc) d->step = NULL, set_busy(d, false);
  return rc;
}

pe_status pe_device_proceed(pe_device *d, int64_t until_ns, bool *done, pe_error *err) {
  assert(d->step); /* one was submitted, and is not done */
  *done = false;
  pe_status rc = d->backend->wait(d, until_ns, done, err);
  if (!rc && !*done) return PE_OK;
  d->step = NULL, set_busy(d, false);
  return rc ? rc : pe_weights_intact(d->plan->graph->weights, err);
}

pe_status pe_device_submit(pe_device *d, const pe_run *runs, int32_t count, pe_error *err) {
  assert(!d->step); /* the last one was waited for: `layout` and the caches are free */
  pe_status rc = pe_layout_step(&d->layout, d->kv, runs, count, err);
  return rc ? rc : pe_device_begin(d, &d->layout.step, err);
}

pe_status pe_device_wait(pe_device *d, pe_error *err) {
  bool done;
  return pe_device_proceed(d, INT64_MAX, &done, err);
}

pe_status pe_device_step(pe_device *d, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = pe_device_submit(d, runs, count, err);
  return rc ? rc : pe_device_wait(d, err);
}

void pe_device_rest(pe_device *d) {
  d->step = NULL;
  d->backend->rest(d);
  pe_layout_free(&d->layout);
}

/* ---- results --------------------------------------------------------------------------------- */

float *pe_device_logits(const pe_device *d, int32_t i) {
  return d->backend->line(d, &d->plan->logits, i);
}

bool pe_device_lists(const pe_device *d) { return d->backend->shortlist; }

bool pe_device_shortlist(const pe_device *d, int32_t i, pe_shortlist *out) {
  return pe_device_lists(d) && d->backend->shortlist(d, i, out);
}

const float *pe_device_tap(const pe_device *d, size_t t, int32_t i) {
  return d->backend->line(d, &d->plan->tap[t], i);
}

pe_status pe_device_profile(pe_device *d, pe_error *err) {
  if (d->profile) return PE_OK;
  if (!d->backend->profile)
    return pe_fail(err, PE_EUNSUPPORTED, "device %s has no profile", d->backend->name);
  return d->backend->profile(d, err);
}

pe_profile *pe_device_profiled(pe_device *d) {
  if (d->profile) pe_profile_sum(d->profile);
  return d->profile;
}
