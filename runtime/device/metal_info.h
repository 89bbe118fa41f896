/* metal_info.h - what this machine's Metal says about itself, and whether its methods are those
 * that we call; for doctor. */
#ifndef PE_METAL_INFO_H
#define PE_METAL_INFO_H

#include "kernels/metal/gpu.h"
#include "runtime/base.h"

typedef struct pe_metal_info {
  pe_gpu_facts facts;
  int methods;     /* of the table (kernels/metal/mtl.h) */
  int differences; /* that the objects of this system have to it */
  pe_buf lines;    /* a line about each; the caller frees it */
} pe_metal_info;

/* After a failure there is nothing to free. */
pe_status pe_metal_info_ask(pe_metal_info *out, pe_error *err);

#endif
