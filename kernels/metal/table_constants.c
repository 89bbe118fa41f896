/* table_constants.c - the function constants of a job; see table.h. */
#include "kernels/metal/table.h"

static uint32_t format_of(const pe_quant_matrix *m, int field) {
  if (!m) return 0;
  switch (field) {
  case PE_CONSTANT_KIND: return m->quant.kind;
  case PE_CONSTANT_BITS: return (uint32_t)m->quant.bits;
  case PE_CONSTANT_GROUP: return (uint32_t)m->quant.group;
  default: return m->quant.kind == PE_QUANT_NONE ? m->dtype : m->quant.scale_dtype;
  }
}

uint32_t pe_metal_constant_of(const pe_metal_job *job, int constant) {
  if (constant < PE_CONSTANT_KIND2) return format_of(job->mat, constant);
  if (constant < PE_CONSTANT_KIND3)
    return format_of(job->mat2 ? job->mat2 : job->mat, constant - PE_CONSTANT_KIND2);
  if (constant < PE_CONSTANT_KIND4)
    return format_of(job->mat3 ? job->mat3 : job->mat, constant - PE_CONSTANT_KIND3);
  if (constant < PE_CONSTANT_GATE)
    return format_of(job->mat4 ? job->mat4 : job->mat, constant - PE_CONSTANT_KIND4);
  if (constant == PE_CONSTANT_NORM) return job->call->norm.width > 0;
  if (constant == PE_CONSTANT_ROUTE) return job->route;
  if (constant == PE_CONSTANT_GATE)
    return (uint32_t)(job->op == PE_OP_GATED ? job->args->gated.activation
                                             : job->args->expert_gated.activation);
  switch (job->op) {
  case PE_OP_STORE: return (uint32_t)job->args->store.cache.type;
  case PE_OP_ATTENTION: return (uint32_t)job->args->attention.cache.type;
  default: return PE_KV_F32; /* the lines of a tower */
  }
}
