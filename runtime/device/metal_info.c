/* metal_info.c - see metal_info.h. */
#include "runtime/device/metal_info.h"

#include "kernels/metal/table.h"
#include "runtime/device/metal_store.h"

/* A line that does not fit into memory is counted all the same. */
static void keep(void *ctx, const char *line) {
  pe_metal_info *info = ctx;
  pe_buf_printf(&info->lines, NULL, "%s\n", line);
}

pe_status pe_metal_info_ask(pe_metal_info *out, pe_error *err) {
  pe_metal_error e = {0};
  pe_gpu *gpu = NULL;
  pe_id pipeline = NULL;
  *out = (pe_metal_info){.methods = PE_MTL_METHOD_COUNT};
  if (!pe_gpu_take(&(pe_gpu_options){.source = pe_metal_source}, &gpu, &e))
    return pe_metal_status(&e, err);
  out->facts = *pe_gpu_facts_of(gpu);
  const bool ok = pe_gpu_pipeline(gpu, &(pe_gpu_kernel){.name = "output"}, &pipeline, &e);
  if (ok) out->differences = pe_gpu_check(gpu, keep, out);
  pe_gpu_give(gpu);
  return ok ? PE_OK : pe_metal_status(&e, err);
}
