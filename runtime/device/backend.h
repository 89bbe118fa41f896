/* backend.h - what a kind of hardware does for a device (device.h): a table of functions.
 *
 *                      device.c: layout, checks, one step at a time
 *     submit(step) --> backend: starts to compute, or only prepares it, and returns
 *                      ... the host does something else ...
 *     wait         --> backend: computes or waits; afterwards nothing of the step runs any more
 *     line         --> backend: where a value of the step is in memory
 *
 * A backend has a struct of its own that begins with a pe_device; device.c allocates it, zeroed,
 * fills the head and calls `open`. A backend owns what depends on its hardware: packed weights, the
 * areas that hold the values of a step, scratch, and how places in a plan become addresses.
 *
 * Memory is unified. The weights are mapped files or packs (weights.h, packs.h), the caches are
 * whole pages that begin on a page (kv.h, recur.h: `memory`): a GPU wraps both without a copy when
 * the device is opened. The host writes to the caches (copy on write, zeroing, restoring, files)
 * and reads them (snapshots, files) with memcpy, but never while a step is submitted: `busy` of
 * both pools says so, and their functions assert it. So a backend has nothing to synchronise
 * beyond: what the host wrote before `submit` is seen by the step, and what the step wrote is seen
 * by the host after `wait`.
 *
 * Threads: the functions of one device are called by one thread at a time. */
#ifndef PE_BACKEND_H
#define PE_BACKEND_H

#include "runtime/cache/recur.h"
#include "runtime/device/layout.h"
#include "runtime/device/shortlist.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"

typedef struct pe_device pe_device;

typedef struct pe_backend {
  const char *name; /* as --device takes it */
  size_t size;      /* of its struct */
  /* Can it be used on this machine? An error that says why not. */
  pe_status (*available)(pe_error *err);
  pe_status (*open)(pe_device *d, pe_error *err);
  /* After a failed `open` also. Like the next one and `rest` it drops what is left of a step that
   * `wait` has not finished: nothing of it runs afterwards. */
  void (*close)(pe_device *d);
  /* Provides the memory for d->step and starts. The step is borrowed until it is done. After a
   * failure nothing runs. */
  pe_status (*submit)(pe_device *d, pe_error *err);
  /* Until the step is done, or the clock has passed until_ns. After a failure nothing runs, and
   * what the step wrote is undefined. */
  pe_status (*wait)(pe_device *d, int64_t until_ns, bool *done, pe_error *err);
  /* Gives the memory of steps back, which the next one takes again. */
  void (*rest)(pe_device *d);
  /* Line i of a place, of the last step that is done. Valid until the next `submit` or `rest`. */
  float *(*line)(const pe_device *d, const pe_place *p, int32_t i);
  /* Of output i of the last step that is done, which asked for it (pe_step.wanted). False: its line
   * must be read. NULL: every line must. Valid as long as a line. */
  bool (*shortlist)(const pe_device *d, int32_t i, pe_shortlist *out);
  /* Opens d->profile, which `submit` and `wait` fill from then on. NULL: it has none. */
  pe_status (*profile)(pe_device *d, pe_error *err);
} pe_backend;

struct pe_device { /* the head of every backend's struct */
  const pe_backend *backend;
  const pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv; /* NULL, like the next one: the plan has no caches */
  pe_recur *recur;
  pe_precision precision;
  const pe_progress *progress; /* of opening; NULL: nobody asks */
  const pe_step *step;         /* submitted and not done; NULL: none */
  struct pe_profile *profile;  /* NULL: off */
  /* ---- private: device.c ---- */
  pe_layout layout;
};

extern const pe_backend pe_backend_cpu, pe_backend_metal;

/* The backend of this name; "auto": the first one that this machine can use. borrows */
pe_status pe_backend_named(const char *name, const pe_backend **out, pe_error *err);

#endif
