/* int16_i8mm.c - products of bytes with the matrix instructions of aarch64; empty on other
 * machines. */
#include "kernels/cpu/int16.h"
#if defined __aarch64__ && defined __ARM_FEATURE_MATMUL_INT8

#include "kernels/cpu/int16_arm.h"

#define PE_ISA i8mm
#define PE_ISA_NAME "i8mm"
#define PE_COLS 512
#define PE_MATRIX

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_planes.h"

#include "kernels/cpu/int16_impl.h"

#endif
