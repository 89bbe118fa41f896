/* host.h - Metal's language on the executor: collectives, barriers, and binding of parameters.
 *
 * Kernels see a type for every attribute of a parameter (tag), from which its value comes. */
#pragma once
#include "tests/metal/exec/exec.h"
#include "tests/metal/shim/types.h"

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

enum attribute { BUFFER, GRID, GROUP, THREAD, THREADS, GROUPS, INDEX, SIMDGROUP, LANE, SIMDGROUPS };
template <attribute Kind, int Index> struct tag {};

template <class T> METAL_FUNC T position(uint x, uint y, uint z) {
  if constexpr (std::is_arithmetic<T>::value)
    return (T)x;
  else if constexpr (std::is_same<T, uint2>::value)
    return uint2{x, y};
  else
    return uint3{x, y, z};
}

template <class T, attribute Kind, int Index> METAL_FUNC T parameter(tag<Kind, Index>) {
  const msl_place *p = msl_here();
  const msl_launch *l = msl_launched();
  if constexpr (Kind == BUFFER && std::is_pointer<T>::value)
    return (T)l->buffer[Index].at;
  else if constexpr (Kind == BUFFER)
    return *(std::remove_reference_t<T> *)l->buffer[Index].at;
  else if constexpr (Kind == GRID)
    return position<T>(p->group[0] * l->threads + p->thread, p->group[1], p->group[2]);
  else if constexpr (Kind == GROUP)
    return position<T>(p->group[0], p->group[1], p->group[2]);
  else if constexpr (Kind == THREAD)
    return position<T>(p->thread, 0, 0);
  else if constexpr (Kind == THREADS)
    return position<T>(l->threads, 1, 1);
  else if constexpr (Kind == GROUPS)
    return position<T>(l->groups[0], l->groups[1], l->groups[2]);
  else if constexpr (Kind == INDEX)
    return (T)p->thread;
  else if constexpr (Kind == SIMDGROUP)
    return (T)(p->thread / MSL_LANES);
  else if constexpr (Kind == LANE)
    return (T)this_lane();
  else
    return (T)(l->threads / MSL_LANES);
}

/* What parameter I of a kernel points or refers to. */
template <class F> struct parameters;
template <class... T> struct parameters<void (*)(T...)> {
  template <int I> using type = std::remove_reference_t<std::tuple_element_t<I, std::tuple<T...>>>;
  template <int I> using element = std::remove_pointer_t<type<I>>;
};
template <auto F, int I> using element_of = typename parameters<decltype(F)>::template element<I>;

/* Calls F with the parameters that the tags name. */
template <auto F, class... Tags> struct entry {
  template <class... T> static void call(void (*)(T...)) { F(parameter<T>(Tags{})...); }
  static void run() { call(F); }
};

} // namespace metal
