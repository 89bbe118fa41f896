/* cuda.h - Metal's language as CUDA, for clang without the headers of CUDA: a threadgroup is a
 * block, a simdgroup a warp, threadgroup memory is shared memory. Functions of mathematics are
 * those of libdevice. Every function is compiled for both sides (cuda.sh says so to clang), so the
 * headers that are shared with the executor stay as they are. */
#pragma once
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define MSL_ENTRY __attribute__((global))
#define MSL_MATH(name) __nv_##name
extern "C" {
__device__ float __nv_fmaxf(float, float);
__device__ float __nv_fmaf(float, float, float);
__device__ float __nv_fabsf(float);
__device__ float __nv_sqrtf(float);
__device__ float __nv_rintf(float);
__device__ float __nv_expf(float);
__device__ float __nv_logf(float);
__device__ float __nv_powf(float, float);
__device__ float __nv_sinf(float);
__device__ float __nv_cosf(float);
__device__ float __nv_tanhf(float);
}
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#pragma clang force_cuda_host_device begin
#include "tests/metal/shim/entry.h"
#include "tests/metal/exec/cuda.h"

#define MSL_KERNEL static
#define MSL_PROGRAM_CONSTANT static constexpr
/* Set before every launch, by its name. */
#define MSL_FUNCTION_CONSTANT(name)                                                                \
  extern "C" {                                                                                     \
  __attribute__((constant)) uint name;                                                             \
  }                                                                                                \
  static_assert(true, "takes the semicolon")
#define MSL_GROUP_ARRAY(id, T, name, n) static __attribute__((shared)) T name[n]

namespace metal {

typedef msl_cuda_arguments arguments;

METAL_FUNC void threadgroup_barrier(mem_flags) { __syncthreads(); }
METAL_FUNC void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(0xffffffffu); }

template <class T> METAL_FUNC T simd_shuffle(T v, ushort lane) {
  static_assert(sizeof(T) == 4, "four bytes are exchanged");
  return as_type<T>(__nvvm_shfl_sync_idx_i32(0xffffffffu, as_type<int>(v), lane, 31));
}
template <class T> METAL_FUNC T simd_shuffle_xor(T v, ushort mask) {
  return simd_shuffle(v, (ushort)(__nvvm_read_ptx_sreg_laneid() ^ mask));
}

struct cuda_place {
  const arguments &a;
  METAL_FUNC uint group(int i) const {
    return i == 0   ? __nvvm_read_ptx_sreg_ctaid_x()
           : i == 1 ? __nvvm_read_ptx_sreg_ctaid_y()
                    : __nvvm_read_ptx_sreg_ctaid_z();
  }
  METAL_FUNC uint groups(int i) const {
    return i == 0   ? __nvvm_read_ptx_sreg_nctaid_x()
           : i == 1 ? __nvvm_read_ptx_sreg_nctaid_y()
                    : __nvvm_read_ptx_sreg_nctaid_z();
  }
  METAL_FUNC uint thread() const { return __nvvm_read_ptx_sreg_tid_x(); }
  METAL_FUNC uint threads() const { return __nvvm_read_ptx_sreg_ntid_x(); }
  METAL_FUNC void *buffer(int i) const { return (void *)a.buffer[i]; }
};

template <auto F, class... Tags> struct entry {
  template <class... T> METAL_FUNC static void call(void (*)(T...), const arguments &a) {
    F(parameter<T>(Tags{}, cuda_place{a})...);
  }
  METAL_FUNC static void run(const arguments &a) { call(F, a); }
};

} // namespace metal
