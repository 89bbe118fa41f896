/* strict.h - for checking alone: Metal's names and address spaces for clang -fsyntax-only.
 *
 * No header of C or C++ is included, so nothing exists that Metal has not, and pointers of
 * different address spaces do not mix. Functions are declared and never defined. */
#pragma once
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#define thread
#define METAL_FUNC inline __attribute__((always_inline))
#define MSL_KERNEL
#define MSL_PROGRAM_CONSTANT static __attribute__((address_space(2))) const
#define MSL_FUNCTION_CONSTANT(name) extern __attribute__((address_space(2))) const uint name
#define MSL_GROUP_ARRAY(id, T, name, n) static __attribute__((address_space(3))) T name[n]
#define INFINITY __builtin_huge_valf()

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef ulong size_t;
typedef _Float16 half;

namespace metal {
template <class To, class From> To as_type(From);
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
float max(float, float);
int max(int, int);
uint max(uint, uint);
float min(float, float);
int min(int, int);
uint min(uint, uint);
float fmax(float, float);
float fma(float, float, float);
float fabs(float);
float sqrt(float);
float rint(float);
bool isnan(float);
namespace precise {
float exp(float);
float log(float);
float pow(float, float);
float sin(float);
float cos(float);
float tanh(float);
float sqrt(float);
} // namespace precise
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
float simd_shuffle(float, ushort);
int simd_shuffle(int, ushort);
uint simd_shuffle(uint, ushort);
float simd_shuffle_xor(float, ushort);
int simd_shuffle_xor(int, ushort);
uint simd_shuffle_xor(uint, ushort);
} // namespace metal
