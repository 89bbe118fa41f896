/* gpu.h - the Metal device of this machine: memory, pipelines and commands.
 *
 *     pe_gpu_take        opens the device, its queue and the library of kernels; counted
 *     pe_gpu_allocate    memory that both sides see; pe_gpu_wrap: pages that the caller has
 *     pe_gpu_pipeline    a kernel by name and function constants, compiled once and kept
 *     pe_gpu_begin ...   one command buffer: dispatches and barriers between them
 *     pe_gpu_commit      hands it to the GPU; pe_gpu_finish waits for it and says how it went
 *
 * The end of a command buffer is told by a shared event, whose value is the number of the last one
 * that is done.
 *
 * All buffers are in one residency set where the system has them (macOS 15), so that weights stay
 * wired between steps.
 *
 * Dispatches of one command buffer may run at the same time and in any order; those after a barrier
 * see what those before it wrote. Command buffers run in the order of their commits.
 *
 * Failures. Every function that can fail returns false and fills e. A command buffer that failed
 * leaves its results worthless, and nothing else; after a lost device every call fails.
 *
 * Ownership: a pe_gpu is shared by all models of the process and freed with the last reference;
 * buffers belong to the code that made them and must not be freed while a command buffer uses them.
 * Threads: any thread may take, give, allocate, wrap and free, and ask for pipelines; a pe_commands
 * belongs to one thread from begin to end, because pools belong to threads. */
#ifndef PE_METAL_GPU_H
#define PE_METAL_GPU_H

#include "kernels/metal/mtl.h"

enum {
  PE_GPU_SLOTS = 31,       /* buffers of a kernel: Metal's limit */
  PE_GPU_CONSTANTS = 20,   /* function constants of a kernel */
  PE_GPU_PIPELINES = 1024, /* kinds of weights times kernels: a model needs about 40 */
  PE_GPU_BYTES = 4096      /* that setBytes takes */
};

typedef struct pe_gpu pe_gpu;

/* Has this machine a GPU that we can use? False: e says why not. */
bool pe_gpu_available(pe_metal_error *e);

typedef struct pe_gpu_options {
  const char *source;  /* the text of all kernels */
  const char *archive; /* file that keeps compiled pipelines, or NULL: none */
} pe_gpu_options;

/* The options are those of the first taker. gives */
bool pe_gpu_take(const pe_gpu_options *o, pe_gpu **out, pe_metal_error *e);
void pe_gpu_give(pe_gpu *g); /* takes; NULL is fine */

typedef struct pe_gpu_facts {
  char name[64];
  bool metal3;          /* says that it is of the family Metal 3 */
  bool apple7;          /* of Apple 7 or later: simdgroup matrices */
  uint64_t working_set; /* bytes that Metal recommends to use at most */
  uint64_t most_bytes;  /* of a buffer */
  bool residency;       /* has residency sets */
  bool tensors;         /* the system and the GPU have tensor operations (Metal 4, macOS 26) */
} pe_gpu_facts;
const pe_gpu_facts *pe_gpu_facts_of(const pe_gpu *g);

/* Compares every method of the table with the living objects of this system; calls report with a
 * line for every difference and returns their number. */
int pe_gpu_check(pe_gpu *g, void (*report)(void *ctx, const char *line), void *ctx);

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct pe_gpu_buffer { /* {0}: none */
  pe_id object;
  uint8_t *data;
  uint64_t size;
} pe_gpu_buffer;

bool pe_gpu_allocate(pe_gpu *g, uint64_t size, pe_gpu_buffer *out, pe_metal_error *e); /* gives */
/* Pages that stay the caller's and must outlive the buffer. at and size: multiples of the page. */
bool pe_gpu_wrap(pe_gpu *g, const void *at, uint64_t size, pe_gpu_buffer *out, pe_metal_error *e);
void pe_gpu_free(pe_gpu *g, pe_gpu_buffer *b); /* leaves {0}, which is fine to free */
uint64_t pe_gpu_page(void);

/* ---- pipelines ------------------------------------------------------------------------------- */

typedef struct pe_gpu_kernel {
  const char *name;
  uint32_t constants;               /* bits of the function constants that it has */
  uint32_t value[PE_GPU_CONSTANTS]; /* 0 where it has none */
} pe_gpu_kernel;

/* Borrowed: lives as long as g. The name must live as long. */
bool pe_gpu_pipeline(pe_gpu *g, const pe_gpu_kernel *kernel, pe_id *out, pe_metal_error *e);

/* ---- commands -------------------------------------------------------------------------------- */

typedef struct pe_commands { /* {0}: none */
  pe_id buffer, encoder;
  void *pool;
  pe_nsuint number; /* since the commit; else 0 */
} pe_commands;

bool pe_gpu_begin(pe_gpu *g, pe_commands *c, pe_metal_error *e);
void pe_commands_use(pe_commands *c, pe_id pipeline);
void pe_commands_bind(pe_commands *c, int slot, const pe_gpu_buffer *b, uint64_t at);
void pe_commands_bytes(pe_commands *c, int slot, const void *bytes, size_t size);
void pe_commands_dispatch(pe_commands *c, const uint32_t groups[3], uint32_t threads);
void pe_commands_barrier(pe_commands *c);
/* Nothing more comes. It may be committed much later, or never. */
void pe_commands_end(pe_gpu *g, pe_commands *c);
/* Hands ended commands to the GPU, and leaves them for pe_gpu_finish. */
void pe_gpu_commit(pe_gpu *g, pe_commands *c);
/* Waits until it is done, or for this many milliseconds. If it is done, says how it went, and
 * leaves {0}. */
bool pe_gpu_finish(pe_gpu *g, pe_commands *c, uint64_t most_ms, bool *done, pe_metal_error *e);
/* Drops commands that were not committed, ended or not; leaves {0}. */
void pe_gpu_drop(pe_gpu *g, pe_commands *c);

#endif
