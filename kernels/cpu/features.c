/* features.c - see features.h. */
#include "kernels/cpu/features.h"

#include <stdatomic.h>
#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BIT(f) ((uint64_t)1 << (f))

const char *pe_cpu_feature_name(pe_cpu_feature f) {
#define NAME(id, name) name,
  static const char *const names[] = {PE_CPU_FEATURES(NAME)};
#undef NAME
  return (unsigned)f < PE_CPU_FEATURE_COUNT ? names[f] : "unknown";
}

#if defined(__x86_64__)

enum { LEAF1_C, LEAF7_B, LEAF7_C, LEAF7_D, LEAF71_A, WORDS };
enum { NEEDS_NOTHING, NEEDS_YMM, NEEDS_ZMM, NEEDS_TILES };

typedef struct bit_of {
  uint8_t feature, word, bit, needs;
} bit_of;

static const bit_of bits[] = {
    {PE_CPU_SSE42, LEAF1_C, 20, NEEDS_NOTHING},   {PE_CPU_AVX, LEAF1_C, 28, NEEDS_YMM},
    {PE_CPU_F16C, LEAF1_C, 29, NEEDS_YMM},        {PE_CPU_FMA, LEAF1_C, 12, NEEDS_YMM},
    {PE_CPU_AVX2, LEAF7_B, 5, NEEDS_YMM},         {PE_CPU_AVX_VNNI, LEAF71_A, 4, NEEDS_YMM},
    {PE_CPU_AVX512F, LEAF7_B, 16, NEEDS_ZMM},     {PE_CPU_AVX512BW, LEAF7_B, 30, NEEDS_ZMM},
    {PE_CPU_AVX512DQ, LEAF7_B, 17, NEEDS_ZMM},    {PE_CPU_AVX512VL, LEAF7_B, 31, NEEDS_ZMM},
    {PE_CPU_AVX512_VBMI, LEAF7_C, 1, NEEDS_ZMM},  {PE_CPU_AVX512_VNNI, LEAF7_C, 11, NEEDS_ZMM},
    {PE_CPU_AVX512_BF16, LEAF71_A, 5, NEEDS_ZMM}, {PE_CPU_AVX512_FP16, LEAF7_D, 23, NEEDS_ZMM},
    {PE_CPU_GFNI, LEAF7_C, 8, NEEDS_ZMM},         {PE_CPU_AMX_TILE, LEAF7_D, 24, NEEDS_TILES},
    {PE_CPU_AMX_INT8, LEAF7_D, 25, NEEDS_TILES},  {PE_CPU_AMX_BF16, LEAF7_D, 22, NEEDS_TILES},
};

/* The register files that the operating system saves (XCR0). */
static uint64_t saved_state(uint32_t leaf1_c) {
  if (!(leaf1_c >> 27 & 1)) return 0; /* no OSXSAVE */
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/* Linux grants the tile registers on request only. */
static int tiles_granted(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return 0;
#endif
}

static uint64_t detect(void) {
  uint32_t word[WORDS] = {0}, a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  word[LEAF1_C] = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    word[LEAF7_B] = b, word[LEAF7_C] = c, word[LEAF7_D] = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) word[LEAF71_A] = a;
  }
  uint64_t saved = saved_state(word[LEAF1_C]), found = 0;
  int have[] = {1, (saved & 0x6) == 0x6, (saved & 0xe6) == 0xe6, (saved & 0x60000) == 0x60000};
  if (have[NEEDS_TILES] && word[LEAF7_D] >> 24 & 1) have[NEEDS_TILES] = tiles_granted();
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
    if (have[bits[i].needs] && word[bits[i].word] >> bits[i].bit & 1) found |= BIT(bits[i].feature);
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

/* The kernel's bits of hardware capabilities, as numbers: older headers lack newer names. */
static uint64_t detect(void) {
  static const struct {
    uint8_t feature, word, bit;
  } bits[] = {{PE_CPU_NEON, 0, 1},  {PE_CPU_FP16, 0, 10}, {PE_CPU_DOTPROD, 0, 20},
              {PE_CPU_SVE, 0, 22},  {PE_CPU_SVE2, 1, 1},  {PE_CPU_I8MM, 1, 13},
              {PE_CPU_BF16, 1, 14}, {PE_CPU_SME, 1, 23}};
  unsigned long word[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  uint64_t found = 0;
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
    if (word[bits[i].word] >> bits[i].bit & 1) found |= BIT(bits[i].feature);
  return found;
}

#elif defined(__aarch64__) && defined(__APPLE__)

static uint64_t detect(void) {
  static const struct {
    uint8_t feature;
    const char *name;
  } names[] = {{PE_CPU_FP16, "hw.optional.arm.FEAT_FP16"},
               {PE_CPU_DOTPROD, "hw.optional.arm.FEAT_DotProd"},
               {PE_CPU_I8MM, "hw.optional.arm.FEAT_I8MM"},
               {PE_CPU_BF16, "hw.optional.arm.FEAT_BF16"},
               {PE_CPU_SME, "hw.optional.arm.FEAT_SME"}};
  uint64_t found = BIT(PE_CPU_NEON);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int on = 0;
    size_t size = sizeof on;
    if (!sysctlbyname(names[i].name, &on, &size, NULL, 0) && on) found |= BIT(names[i].feature);
  }
  return found;
}

#else
static uint64_t detect(void) { return 0; }
#endif

uint64_t pe_cpu_features(void) {
  static _Atomic uint64_t known;
  const uint64_t DETECTED = (uint64_t)1 << 63;
  uint64_t f = atomic_load_explicit(&known, memory_order_relaxed);
  if (!f) { /* two threads may both detect: they find the same */
    f = detect() | DETECTED;
    atomic_store_explicit(&known, f, memory_order_relaxed);
  }
  return f & ~DETECTED;
}
