/* host.h - Metal's language on the executor: collectives, barriers, and binding of parameters. */
#pragma once
#include "tests/metal/exec/exec.h"
#include "tests/metal/shim/entry.h"

#define MSL_KERNEL static
#define MSL_PROGRAM_CONSTANT static const
#define MSL_FUNCTION_CONSTANT(name) static uint name
#define MSL_GROUP_ARRAY(id, T, name, n)                                                            \
  auto &name = *(metal::array_of<T, n> *)msl_group_array(id, sizeof(metal::array_of<T, n>))

namespace metal {

template <class T, unsigned N> using array_of = T[N];

METAL_FUNC void threadgroup_barrier(mem_flags f) { msl_barrier((uint)f); }
METAL_FUNC void simdgroup_barrier(mem_flags f) { msl_simdgroup_barrier((uint)f); }

/* Lanes that are not there give a value that shows. */
template <class T> METAL_FUNC T from_lane(uint op, T value, uint lane) {
  uint mask;
  const T *all = (const T *)msl_exchange(op, &value, sizeof value, &mask);
  if (lane < MSL_LANES && mask >> lane & 1) return all[lane];
  T nothing;
  memset(&nothing, 0xff, sizeof nothing);
  return nothing;
}
METAL_FUNC uint this_lane() { return msl_here()->thread % MSL_LANES; }
template <class T> METAL_FUNC T simd_shuffle(T v, ushort lane) { return from_lane(1, v, lane); }
template <class T> METAL_FUNC T simd_shuffle_xor(T v, ushort mask) {
  return from_lane(2, v, this_lane() ^ mask);
}

/* ---- parameters ------------------------------------------------------------------------------ */

struct host_place {
  METAL_FUNC uint group(int i) const { return msl_here()->group[i]; }
  METAL_FUNC uint groups(int i) const { return msl_launched()->groups[i]; }
  METAL_FUNC uint thread() const { return msl_here()->thread; }
  METAL_FUNC uint threads() const { return msl_launched()->threads; }
  METAL_FUNC void *buffer(int i) const { return msl_launched()->buffer[i].at; }
};

/* Calls F with the parameters that the tags name. */
template <auto F, class... Tags> struct entry {
  template <class... T> static void call(void (*)(T...)) {
    F(parameter<T>(Tags{}, host_place{})...);
  }
  static void run() { call(F); }
};

} // namespace metal
