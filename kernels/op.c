/* op.c - see op.h. */
#include "kernels/op.h"

const char *pe_op_name(pe_op op) {
  static const char *const names[] = {
#define PE_OP_NAME(id, name) [PE_OP_##id] = name,
      PE_OPS(PE_OP_NAME)
#undef PE_OP_NAME
  };
  return names[op];
}

const char *pe_map_name(pe_map_op op) {
  static const char *const names[] = {
#define PE_MAP_NAME(id, name) [PE_MAP_##id] = name,
      PE_MAP_UNARY(PE_MAP_NAME) PE_MAP_BINARY(PE_MAP_NAME)
#undef PE_MAP_NAME
  };
  return names[op];
}
