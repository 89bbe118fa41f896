/* gpu_parts.h - what the gpu*.c files share. */
#ifndef PE_METAL_GPU_PARTS_H
#define PE_METAL_GPU_PARTS_H

#include "kernels/metal/gpu.h"

#include <pthread.h>

typedef struct pe_gpu_entry { /* a compiled kernel */
  pe_gpu_kernel kernel;
  pe_id pipeline;
} pe_gpu_entry;

struct pe_gpu {
  const pe_objc *objc;
  int refs;
  pe_gpu_facts facts;
  pe_id device, queue, library;
  pe_id event;        /* every command buffer signals its number when it is done, */
  pe_nsuint numbered; /* up to this one */
  pe_id residency;    /* NULL: the system has no residency sets */
  pe_id archive;      /* NULL: none */
  char archive_path[1024];
  bool archive_changed, lost;
  pe_gpu_entry entry[PE_GPU_PIPELINES];
  int entries;
  pthread_mutex_t lock; /* of entries, the residency set and `numbered` */
};

/* gpu_pipeline.c. The archive is a cache: failing to read or write it is not an error. */
void pe_gpu_archive_open(pe_gpu *g, const char *path);
void pe_gpu_archive_close(pe_gpu *g);
void pe_gpu_pipelines_close(pe_gpu *g);

#endif
