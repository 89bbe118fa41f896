/* exec.h - runs Metal kernels on the CPU: one fibre for each thread of a threadgroup.
 *
 * The kernels are C++ made by mslx.lua. A fibre stops only at barriers and where lanes of a
 * simdgroup exchange values, so all orders that Metal allows between two such places are covered by
 * running the lanes in different orders: the options choose one, and a right kernel gives the same
 * bytes in each. Always watched: lanes that take part in different exchanges, groups that get
 * stuck, barriers that some threads never reach, the limits of 32 KB and 1024 threads, memory of
 * the threadgroup that was not written (it holds NaN). check.c adds races and bounds.
 *
 * One launch at a time, on the thread that calls. Faults are counted and the first ones kept as
 * text; nothing is printed. */
#ifndef MSL_EXEC_H
#define MSL_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MSL_SLOTS = 31, MSL_GROUP_MEMORY = 32768, MSL_GROUP_THREADS = 1024, MSL_LANES = 32 };

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct msl_argument { /* a buffer of a kernel; the list ends with index -1 */
  const char *name;
  int index;
  bool writes;
  uint32_t align, bytes; /* of an element */
} msl_argument;
typedef struct msl_constant { /* a function constant; the list ends with index -1 */
  const char *name;
  int index;
  uint32_t *at;
} msl_constant;
typedef struct msl_kernel {
  const char *name;
  void (*run)(void); /* one thread */
  const msl_argument *arguments;
  const msl_constant *constants;
} msl_kernel;

void msl_register(const msl_kernel *kernel);
void msl_init_all(void); /* registers all kernels; generated */
const msl_kernel *msl_find(const char *name);
const msl_kernel *msl_at(int i); /* NULL after the last */

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct msl_launch {
  const msl_kernel *kernel;
  struct {
    uint8_t *at;  /* NULL: not bound */
    size_t bytes; /* from there to the end of its buffer */
  } buffer[MSL_SLOTS];
  uint32_t constant[32], constants; /* values; bits of those that are set */
  uint32_t groups[3], threads;      /* threadgroups, threads in each */
  uint32_t batch; /* launches of the same batch (not 0) are not ordered by a memory barrier */
} msl_launch;

typedef enum msl_order { MSL_FORWARD, MSL_REVERSE, MSL_RANDOM } msl_order;
typedef struct msl_options {
  msl_order order;
  uint32_t seed;
} msl_options;
extern msl_options msl_option;
enum { MSL_SCHEDULES = 5 };
void msl_schedule(int i); /* sets the options to one of the five */

int msl_run(const msl_launch *launch); /* the number of faults */
/* Runs launches instead, and reports faults by msl_fault; NULL: they run here. */
extern void (*msl_elsewhere)(const msl_launch *launch);
/* An NVIDIA GPU, with the kernels in a folder of PTX (cuda.c). *why: what is missing or broken. */
typedef enum msl_cuda { MSL_CUDA_NONE, MSL_CUDA_BROKEN, MSL_CUDA_READY } msl_cuda;
msl_cuda msl_cuda_install(const char *folder, const char **why);
/* From now on every launch is repeated so often and timed. */
void msl_cuda_repeat(int times);
/* Of all launches since it was asked last, each counted once. */
double msl_cuda_seconds(void);
/* Of the GPU's memory by its clock and width, in bytes a second. */
double msl_cuda_bandwidth(void);
/* The faults since the last call of msl_forget: their number and the text of the first. */
int msl_faults(void);
const char *msl_fault_text(void);
void msl_forget(void);

/* ---- what kernels call (shim/host.h) --------------------------------------------------------- */

typedef struct msl_place {
  uint32_t group[3]; /* of the threadgroup in the grid */
  uint32_t thread;   /* in the threadgroup */
} msl_place;
const msl_place *msl_here(void);
const msl_launch *msl_launched(void);
void *msl_group_array(uint32_t id, uint32_t bytes);
void msl_barrier(uint32_t flags); /* of the threadgroup */
void msl_simdgroup_barrier(uint32_t flags);
/* Every lane gives `bytes` bytes (at most 16) and gets those of all lanes and their mask. */
const void *msl_exchange(uint32_t op, const void *value, uint32_t bytes, uint32_t *mask);
void msl_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- what the checker watches; NULL: no checker ---------------------------------------------- */

typedef struct msl_hooks {
  void (*launch)(const msl_launch *launch); /* NULL: it has ended */
  void (*group)(uint32_t number, const uint8_t *memory);
  void (*resume)(uint32_t thread, const uint8_t *own, size_t own_bytes); /* own: private memory */
  void (*barrier)(uint32_t flags);
  void (*simdgroup_barrier)(uint32_t simdgroup, uint32_t flags);
} msl_hooks;
extern const msl_hooks *msl_hook;
void msl_check_install(void);

#ifdef __cplusplus
}
#endif
#endif
