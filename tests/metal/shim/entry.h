/* entry.h - the parameters of kernels: a type for every attribute (tag), from which a shim makes
 * the value. */
#pragma once
#include "tests/metal/shim/types.h"

namespace metal {

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

/* Where: the place of this thread in the launch, and the buffers. */
template <class T, attribute Kind, int Index, class Where>
METAL_FUNC T parameter(tag<Kind, Index>, const Where &w) {
  if constexpr (Kind == BUFFER && std::is_pointer<T>::value)
    return (T)w.buffer(Index);
  else if constexpr (Kind == BUFFER)
    return *(std::remove_reference_t<T> *)w.buffer(Index);
  else if constexpr (Kind == GRID)
    return position<T>(w.group(0) * w.threads() + w.thread(), w.group(1), w.group(2));
  else if constexpr (Kind == GROUP)
    return position<T>(w.group(0), w.group(1), w.group(2));
  else if constexpr (Kind == THREAD)
    return position<T>(w.thread(), 0, 0);
  else if constexpr (Kind == THREADS)
    return position<T>(w.threads(), 1, 1);
  else if constexpr (Kind == GROUPS)
    return position<T>(w.groups(0), w.groups(1), w.groups(2));
  else if constexpr (Kind == INDEX)
    return (T)w.thread();
  else if constexpr (Kind == SIMDGROUP)
    return (T)(w.thread() / 32);
  else if constexpr (Kind == LANE)
    return (T)(w.thread() % 32);
  else
    return (T)(w.threads() / 32);
}

/* What parameter I of a kernel points or refers to. */
template <class F> struct parameters;
template <class... T> struct parameters<void (*)(T...)> {
  template <int I> using type = std::remove_reference_t<std::tuple_element_t<I, std::tuple<T...>>>;
  template <int I> using element = std::remove_pointer_t<type<I>>;
};
template <auto F, int I> using element_of = typename parameters<decltype(F)>::template element<I>;

} // namespace metal
