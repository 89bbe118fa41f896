/* probe.c - see probe.h. Intrinsics in functions with a target instead of one file per instruction
 * set: nothing here is worth sharing between them. */
#include "kernels/cpu/probe.h"
#include "kernels/cpu/features.h"

#include <string.h>

/* Sums that are independent of each other. Why twelve: two units with a latency of four to five
 * cycles need ten, and sixteen registers must also hold the factors. */
enum { SUMS = 12, STREAMS = 4, AHEAD = 4096 };

/* ---- any processor --------------------------------------------------------------------------- */

static uint64_t read_plain(const uint8_t *data, uint64_t bytes) {
  const uint64_t each = bytes / STREAMS;
  uint64_t sum[STREAMS] = {0};
  for (uint64_t i = 0; i < each; i += sizeof *sum)
    for (int s = 0; s < STREAMS; s++) {
      uint64_t word;
      memcpy(&word, data + (uint64_t)s * each + i, sizeof word);
      sum[s] += word;
    }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

static float fma_plain(int64_t n) {
  float sum[SUMS] = {0}, x = 0.999f;
  for (int64_t i = 0; i < n; i++) {
    __asm__ volatile("" : "+m"(x));
    for (int s = 0; s < SUMS; s++) sum[s] = sum[s] * x + 1;
  }
  float all = 0;
  for (int s = 0; s < SUMS; s++) all += sum[s];
  return all;
}

static int32_t dot_plain(int64_t n) {
  int32_t sum[SUMS] = {0}, all = 0;
  int16_t x = 3;
  for (int64_t i = 0; i < n; i++) {
    __asm__ volatile("" : "+m"(x));
    for (int s = 0; s < SUMS; s++) sum[s] = (int32_t)((uint32_t)sum[s] + (uint32_t)(x * s));
  }
  for (int s = 0; s < SUMS; s++) all ^= sum[s];
  return all;
}

static const pe_probe plain = {"scalar", read_plain, fma_plain, dot_plain, SUMS, SUMS};

#if defined(__x86_64__)
#include "kernels/cpu/tile_ops.h"

#include <immintrin.h>

/* ---- AVX2 ------------------------------------------------------------------------------------ */

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static uint64_t read_avx2(const uint8_t *data, uint64_t bytes) {
  const uint64_t each = bytes / STREAMS;
  __m256i sum[STREAMS] = {0};
  for (uint64_t i = 0; i < each; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) {
      const uint8_t *at = data + (uint64_t)s * each + i;
      _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
      sum[s] = _mm256_xor_si256(sum[s], _mm256_loadu_si256((const void *)at));
      sum[s] = _mm256_xor_si256(sum[s], _mm256_loadu_si256((const void *)(at + 32)));
    }
  }
  for (int s = 1; s < STREAMS; s++) sum[0] = _mm256_xor_si256(sum[0], sum[s]);
  return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

AVX2 static float fma_avx2(int64_t n) {
  __m256 sum[SUMS], x = _mm256_set1_ps(0.999f);
  for (int s = 0; s < SUMS; s++) sum[s] = _mm256_set1_ps((float)s);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) sum[s] = _mm256_fmadd_ps(sum[s], x, x);
  }
  for (int s = 1; s < SUMS; s++) sum[0] = _mm256_add_ps(sum[0], sum[s]);
  return _mm256_cvtss_f32(sum[0]);
}

AVX2 static int32_t dot_avx2(int64_t n) {
  __m256i sum[SUMS] = {0}, x = _mm256_set1_epi16(3);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) {
      __asm__ volatile("" : "+x"(x)); /* the product is not the same in every round */
      sum[s] = _mm256_add_epi32(sum[s], _mm256_madd_epi16(x, x));
    }
  }
  for (int s = 1; s < SUMS; s++) sum[0] = _mm256_add_epi32(sum[0], sum[s]);
  return _mm256_extract_epi32(sum[0], 0);
}

static const pe_probe avx2 = {"avx2", read_avx2, fma_avx2, dot_avx2, SUMS * 8, SUMS * 16};

/* ---- AVX-512 --------------------------------------------------------------------------------- */

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))

AVX512 static uint64_t read_avx512(const uint8_t *data, uint64_t bytes) {
  const uint64_t each = bytes / STREAMS;
  __m512i sum[STREAMS] = {0};
  for (uint64_t i = 0; i < each; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) {
      const uint8_t *at = data + (uint64_t)s * each + i;
      _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
      sum[s] = _mm512_xor_si512(sum[s], _mm512_loadu_si512(at));
    }
  }
  for (int s = 1; s < STREAMS; s++) sum[0] = _mm512_xor_si512(sum[0], sum[s]);
  return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}

AVX512 static float fma_avx512(int64_t n) {
  __m512 sum[SUMS], x = _mm512_set1_ps(0.999f);
  for (int s = 0; s < SUMS; s++) sum[s] = _mm512_set1_ps((float)s);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) sum[s] = _mm512_fmadd_ps(sum[s], x, x);
  }
  for (int s = 1; s < SUMS; s++) sum[0] = _mm512_add_ps(sum[0], sum[s]);
  return _mm512_cvtss_f32(sum[0]);
}

AVX512 static int32_t dot_avx512(int64_t n) {
  __m512i sum[SUMS] = {0}, x = _mm512_set1_epi16(3);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) {
      __asm__ volatile("" : "+v"(x));
      sum[s] = _mm512_add_epi32(sum[s], _mm512_madd_epi16(x, x));
    }
  }
  for (int s = 1; s < SUMS; s++) sum[0] = _mm512_add_epi32(sum[0], sum[s]);
  return _mm512_reduce_add_epi32(sum[0]);
}

VNNI static int32_t dot_vnni(int64_t n) {
  __m512i sum[SUMS] = {0}, x = _mm512_set1_epi16(3);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) sum[s] = _mm512_dpwssd_epi32(sum[s], x, x);
  }
  for (int s = 1; s < SUMS; s++) sum[0] = _mm512_add_epi32(sum[0], sum[s]);
  return _mm512_reduce_add_epi32(sum[0]);
}

static const pe_probe avx512 = {"avx512",   read_avx512, fma_avx512,
                                dot_avx512, SUMS * 16,   SUMS * 32};
static const pe_probe vnni = {"avx512 vnni", read_avx512, fma_avx512,
                              dot_vnni,      SUMS * 16,   SUMS * 32};

/* ---- AMX ------------------------------------------------------------------------------------- */

/* Multiply-adds of four products of tiles. They multiply bytes, and a 16-bit code has two of them,
 * so two products count as one. */
enum { TILE_DOTS = 4 * 16 * 16 * 64 / 2 };

static int32_t dot_amx(int64_t n) {
  int32_t sums[16][16];
  tile_config c = {.palette = 1};
  for (int t = 0; t < 8; t++) c.rows[t] = 16, c.row_bytes[t] = 64;
  tile_configure(&c);
  tile_clear(0), tile_clear(1), tile_clear(2), tile_clear(3), tile_clear(4), tile_clear(5);
  for (int64_t i = 0; i < n; i++)
    tile_dot_ss(0, 4, 5), tile_dot_ss(1, 4, 5), tile_dot_ss(2, 4, 5), tile_dot_ss(3, 4, 5);
  tile_store(0, sums, 64);
  tile_release();
  return sums[0][0];
}

static const pe_probe amx = {"avx512 amx", read_avx512, fma_avx512, dot_amx, SUMS * 16, TILE_DOTS};

const pe_probe *pe_probe_best(void) {
  if (pe_cpu_has(PE_CPU_AVX512_VNNI) && pe_cpu_has(PE_CPU_AMX_INT8)) return &amx;
  if (pe_cpu_has(PE_CPU_AVX512BW)) return pe_cpu_has(PE_CPU_AVX512_VNNI) ? &vnni : &avx512;
  return pe_cpu_has(PE_CPU_AVX2) && pe_cpu_has(PE_CPU_FMA) ? &avx2 : &plain;
}

#elif defined(__aarch64__)
#include <arm_neon.h>

/* ---- NEON ------------------------------------------------------------------------------------ */

static uint64_t read_neon(const uint8_t *data, uint64_t bytes) {
  const uint64_t each = bytes / STREAMS;
  uint8x16_t sum[STREAMS] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  for (uint64_t i = 0; i < each; i += 64)
    for (int s = 0; s < STREAMS; s++) {
      const uint8_t *at = data + (uint64_t)s * each + i;
      __builtin_prefetch(at + 2 * AHEAD, 0, 1); /* to the third level: what these cores want */
      const uint8x16x4_t line = vld1q_u8_x4(at);
      sum[s] = veorq_u8(
          sum[s], veorq_u8(veorq_u8(line.val[0], line.val[1]), veorq_u8(line.val[2], line.val[3])));
    }
  for (int s = 1; s < STREAMS; s++) sum[0] = veorq_u8(sum[0], sum[s]);
  return vgetq_lane_u64(vreinterpretq_u64_u8(sum[0]), 0);
}

enum { NEON_SUMS = 24 }; /* four units */

static float fma_neon(int64_t n) {
  float32x4_t sum[NEON_SUMS], x = vdupq_n_f32(0.999f);
  for (int s = 0; s < NEON_SUMS; s++) sum[s] = vdupq_n_f32((float)s);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
    for (int s = 0; s < NEON_SUMS; s++) sum[s] = vfmaq_f32(x, sum[s], x);
  }
  for (int s = 1; s < NEON_SUMS; s++) sum[0] = vaddq_f32(sum[0], sum[s]);
  return vgetq_lane_f32(sum[0], 0);
}

static int32_t dot_neon(int64_t n) {
  int32x4_t sum[NEON_SUMS];
  int16x4_t x = vdup_n_s16(3);
  for (int s = 0; s < NEON_SUMS; s++) sum[s] = vdupq_n_s32(s);
  for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
    for (int s = 0; s < NEON_SUMS; s++) sum[s] = vmlal_s16(sum[s], x, x);
  }
  for (int s = 1; s < NEON_SUMS; s++) sum[0] = vaddq_s32(sum[0], sum[s]);
  return vgetq_lane_s32(sum[0], 0);
}

static const pe_probe neon = {"neon", read_neon, fma_neon, dot_neon, NEON_SUMS * 4, NEON_SUMS * 4};

const pe_probe *pe_probe_best(void) {
  (void)plain;
  return &neon;
}

#else

const pe_probe *pe_probe_best(void) { return &plain; }

#endif
