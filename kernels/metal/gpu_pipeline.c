/* gpu_pipeline.c - compiled kernels, kept in memory and in a file; see gpu.h. */
#include "kernels/metal/gpu_parts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the archive ----------------------------------------------------------------------------- */

static pe_id url_of(const char *path) {
  return pe_mtl_file_url(pe_mtl.get_class("NSURL"), pe_mtl_string_of(path));
}

/* An archive of another build or system is refused by Metal; a new one takes its place. */
void pe_gpu_archive_open(pe_gpu *g, const char *path) {
  if (strlen(path) + sizeof ".new" > sizeof g->archive_path) return;
  strcpy(g->archive_path, path);
  pe_id error = NULL, descriptor = pe_mtl_new("MTLBinaryArchiveDescriptor");
  if (!access(path, R_OK)) {
    pe_mtl_archive_url(descriptor, url_of(path));
    g->archive = pe_mtl_device_archive(g->device, descriptor, &error);
    pe_mtl_archive_url(descriptor, NULL);
  }
  if (!g->archive) g->archive = pe_mtl_device_archive(g->device, descriptor, &error);
  pe_mtl_release(descriptor);
}

/* Renamed into place, so that another process never reads a part of it. */
void pe_gpu_archive_close(pe_gpu *g) {
  if (g->archive && g->archive_changed) {
    char path[sizeof g->archive_path + 4];
    snprintf(path, sizeof path, "%s.new", g->archive_path);
    pe_id error = NULL;
    if (pe_mtl_archive_save(g->archive, url_of(path), &error)) rename(path, g->archive_path);
  }
  pe_mtl_release(g->archive);
  g->archive = NULL;
}

/* ---- pipelines ------------------------------------------------------------------------------- */

static bool same(const pe_gpu_kernel *a, const pe_gpu_kernel *b) {
  return !strcmp(a->name, b->name) && a->constants == b->constants &&
         !memcmp(a->value, b->value, sizeof a->value);
}

static pe_id function_of(pe_gpu *g, const pe_gpu_kernel *k, pe_id *error) {
  pe_id values = pe_mtl_new("MTLFunctionConstantValues");
  if (!values) return NULL;
  for (int i = 0; i < PE_GPU_CONSTANTS; i++)
    if (k->constants >> i & 1)
      pe_mtl_constants_set(values, &k->value[i], PE_MTL_TYPE_UINT, (pe_nsuint)i);
  pe_id function = pe_mtl_library_function(g->library, pe_mtl_string_of(k->name), values, error);
  pe_mtl_release(values);
  return function;
}

static pe_id compile(pe_gpu *g, const pe_gpu_kernel *k, pe_metal_error *e) {
  pe_id error = NULL, pipeline = NULL, function = function_of(g, k, &error);
  pe_id descriptor = pe_mtl_new("MTLComputePipelineDescriptor");
  if (function && descriptor) {
    pe_mtl_descriptor_function(descriptor, function);
    if (g->archive)
      pe_mtl_descriptor_archives(descriptor,
                                 pe_mtl_array_of_one(pe_mtl.get_class("NSArray"), g->archive));
    pipeline = pe_mtl_device_pipeline(g->device, descriptor, 0, NULL, &error);
    if (pipeline && g->archive) {
      pe_id ignored = NULL;
      g->archive_changed |= pe_mtl_archive_add(g->archive, descriptor, &ignored);
    }
  }
  if (!pipeline) pe_mtl_failed(e, k->name, error);
  pe_mtl_release(descriptor), pe_mtl_release(function);
  return pipeline;
}

static bool add_pipeline(pe_gpu *g, const pe_gpu_kernel *k, pe_id *out, pe_metal_error *e) {
  if (g->entries == PE_GPU_PIPELINES)
    return pe_metal_fail(e, "%s: more than %d pipelines", k->name, PE_GPU_PIPELINES);
  void *pool = g->objc->push();
  *out = compile(g, k, e);
  g->objc->pop(pool);
  if (*out) g->entry[g->entries++] = (pe_gpu_entry){*k, *out};
  return *out != NULL;
}

bool pe_gpu_pipeline(pe_gpu *g, const pe_gpu_kernel *kernel, pe_id *out, pe_metal_error *e) {
  pthread_mutex_lock(&g->lock);
  *out = NULL;
  for (int i = 0; i < g->entries && !*out; i++)
    if (same(&g->entry[i].kernel, kernel)) *out = g->entry[i].pipeline;
  bool ok = *out || add_pipeline(g, kernel, out, e);
  pthread_mutex_unlock(&g->lock);
  return ok;
}

void pe_gpu_pipelines_close(pe_gpu *g) {
  for (int i = 0; i < g->entries; i++) pe_mtl_release(g->entry[i].pipeline);
  g->entries = 0;
}
