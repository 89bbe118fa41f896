/* int16_dotprod.c - products of bytes with the dot product instructions of aarch64; empty on other
 * machines. */
#include "kernels/cpu/int16.h"
#if defined __aarch64__ && defined __ARM_FEATURE_DOTPROD

#include "kernels/cpu/int16_arm.h"

#define PE_ISA dotprod
#define PE_ISA_NAME "dotprod"
#define PE_COLS 512

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_planes.h"

#include "kernels/cpu/int16_impl.h"

#endif
