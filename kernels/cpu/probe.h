/* probe.h - the fastest loops of this processor, to measure what it can do: nothing but loads,
 * nothing but multiply-adds. `bench --profile` compares the kernels with them.
 *
 * Chosen by instruction set, like the kernels. Thread safe; the results mean nothing, they only
 * keep the compiler from removing the work. */
#ifndef PE_PROBE_H
#define PE_PROBE_H

#include <stdint.h>

typedef struct pe_probe {
  const char *name;
  /* Reads all of it, in four streams: one alone does not keep the memory of a server busy. */
  uint64_t (*read)(const uint8_t *data, uint64_t bytes); /* bytes: a multiple of 1024 */
  float (*fma)(int64_t n);                               /* n rounds of multiply-adds of float32, */
  int32_t (*dot)(int64_t n);                             /* of 16-bit integers into 32 bits */
  double fmas, dots;                                     /* multiply-adds of one round */
} pe_probe;

const pe_probe *pe_probe_best(void);

#endif
