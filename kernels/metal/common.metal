// common.metal - what all kernels share: sums over lanes, activations, the arrays of a step.
//
// Kernels are written in a subset of Metal 3.1 that also compiles as C++ (tests/metal/mslx.lua
// checks it): every pointer has its address space, literals end in f, no simdgroup is divergent
// where lanes exchange values. A simdgroup has 32 lanes.
//
// One arithmetic for every row: wherever two kernels may compute the same number, all sums have the
// same order and every multiply-add is written as fma, so no compiler decides. Sums over lanes are
// butterflies of our own: adding is commutative, so all lanes get the same bits, on any machine.
#ifndef PE_METAL_COMMON
#define PE_METAL_COMMON

#include <metal_stdlib>

#include "kernels/metal/args.h"

using namespace metal;

// The layouts of mat to mat4; see args.h.
constant uint KIND [[function_constant(PE_CONSTANT_KIND)]];
constant uint BITS [[function_constant(PE_CONSTANT_BITS)]];
constant uint GROUP_VALUES [[function_constant(PE_CONSTANT_GROUP)]];
constant uint DTYPE [[function_constant(PE_CONSTANT_DTYPE)]];
constant uint KIND2 [[function_constant(PE_CONSTANT_KIND2)]];
constant uint BITS2 [[function_constant(PE_CONSTANT_BITS2)]];
constant uint GROUP_VALUES2 [[function_constant(PE_CONSTANT_GROUP2)]];
constant uint DTYPE2 [[function_constant(PE_CONSTANT_DTYPE2)]];
constant uint KIND3 [[function_constant(PE_CONSTANT_KIND3)]];
constant uint BITS3 [[function_constant(PE_CONSTANT_BITS3)]];
constant uint GROUP_VALUES3 [[function_constant(PE_CONSTANT_GROUP3)]];
constant uint DTYPE3 [[function_constant(PE_CONSTANT_DTYPE3)]];
constant uint KIND4 [[function_constant(PE_CONSTANT_KIND4)]];
constant uint BITS4 [[function_constant(PE_CONSTANT_BITS4)]];
constant uint GROUP_VALUES4 [[function_constant(PE_CONSTANT_GROUP4)]];
constant uint DTYPE4 [[function_constant(PE_CONSTANT_DTYPE4)]];
constant uint GATE [[function_constant(PE_CONSTANT_GATE)]];
constant uint KV [[function_constant(PE_CONSTANT_KV)]];
constant uint NORM [[function_constant(PE_CONSTANT_NORM)]];
constant uint ROUTE [[function_constant(PE_CONSTANT_ROUTE)]];

constant float LOWEST = -3.0e38f;  // below every score, and its exponential is 0

METAL_FUNC float lanes_sum(float v) {
  for (ushort d = 1; d < 32; d *= 2) v += simd_shuffle_xor(v, d);
  return v;
}
METAL_FUNC float lanes_max(float v) {
  for (ushort d = 1; d < 32; d *= 2) v = max(v, simd_shuffle_xor(v, d));
  return v;
}
METAL_FUNC int lanes_max(int v) {
  for (ushort d = 1; d < 32; d *= 2) v = max(v, simd_shuffle_xor(v, d));
  return v;
}
METAL_FUNC int lanes_min(int v) {
  for (ushort d = 1; d < 32; d *= 2) v = min(v, simd_shuffle_xor(v, d));
  return v;
}

// The factor of a norm's values before their weights; all 32 lanes call this. One simdgroup sums in
// the order of those of a norm.
template <typename P>
METAL_FUNC float norm_factor(constant pe_norm_args &norm, int width, P x, uint lane) {
  const int many = (width + (int)PE_NORM_VALUES - 1) / (int)PE_NORM_VALUES;
  const int simdgroups = many > (int)PE_NORM_SIMDGROUPS ? (int)PE_NORM_SIMDGROUPS : many;
  float squares = 0.0f;
  for (int g = 0; g < simdgroups; g++) {
    float part = 0.0f;
    for (int i = 32 * g + (int)lane; i < width; i += 32 * simdgroups) part = fma(x[i], x[i], part);
    squares += lanes_sum(part);
  }
  if (norm.l2 == 0) squares /= (float)width;
  return 1.0f / precise::sqrt(squares + norm.eps);
}

// ---- elementwise functions ----------------------------------------------------------------------

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

// Metal has no log1p: below 2^-12 the first two terms are exact to a float's bits.
METAL_FUNC float log_1p(float x) {
  return x < 2.44140625e-4f ? x - 0.5f * x * x : precise::log(1.0f + x);
}

// Metal has no erf. Near 0 its series, elsewhere the continued fraction's usual rational fit
// (Abramowitz and Stegun 7.1.26), whose error is 1.5e-7.
METAL_FUNC float error_function(float x) {
  const float a = fabs(x);
  if (a < 0.25f) {
    const float s = x * x;
    const float p = fma(s, fma(s, fma(s, -1.0f / 42.0f, 0.1f), -1.0f / 3.0f), 1.0f);
    return 1.1283791671f * x * fma(s * s, s * s * (1.0f / 216.0f), p);
  }
  const float t = 1.0f / fma(0.3275911f, a, 1.0f);
  const float p =
      fma(t, fma(t, fma(t, fma(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f),
          0.254829592f);
  const float y = fma(-p * t, precise::exp(-a * a), 1.0f);
  return x < 0.0f ? -y : y;
}

METAL_FUNC float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + precise::tanh(0.7978845608f * fma(0.044715f * x * x, x, x)));
}

METAL_FUNC float unary(int op, float x) {
  switch (op) {
    case PE_MAP_NEG: return -x;
    case PE_MAP_ABS: return fabs(x);
    case PE_MAP_EXP: return precise::exp(x);
    case PE_MAP_SIGMOID: return sigmoid(x);
    case PE_MAP_SILU: return x * sigmoid(x);
    case PE_MAP_TANH: return precise::tanh(x);
    case PE_MAP_RELU: return x > 0.0f ? x : 0.0f;
    case PE_MAP_RELU2: return x > 0.0f ? x * x : 0.0f;
    case PE_MAP_GELU: return 0.5f * x * (1.0f + error_function(x * 0.7071067812f));
    case PE_MAP_GELU_TANH: return gelu_tanh(x);
    case PE_MAP_SOFTPLUS: return max(x, 0.0f) + log_1p(precise::exp(-fabs(x)));
    case PE_MAP_SQRT: return precise::sqrt(x);
    case PE_MAP_RSQRT: return 1.0f / precise::sqrt(x);
    default: return precise::log(x);
  }
}

METAL_FUNC float binary(int op, float x, float z) {
  switch (op) {
    case PE_MAP_ADD: return x + z;
    case PE_MAP_SUB: return x - z;
    case PE_MAP_MUL: return x * z;
    case PE_MAP_DIV: return x / z;
    case PE_MAP_MIN: return x < z ? x : z;
    default: return x > z ? x : z;
  }
}

// ---- the step -----------------------------------------------------------------------------------

METAL_FUNC device const pe_metal_step &step_head(device const int *words) {
  return *(device const pe_metal_step *)words;
}
METAL_FUNC device const pe_segment &segment_at(device const int *words, int i) {
  return ((device const pe_segment *)(words + step_head(words).segment))[i];
}
METAL_FUNC device const pe_segment &segment_of_row(device const int *words, int row) {
  return segment_at(words, words[step_head(words).segment_of + row]);
}
// The line of features of a row; -1: the row is a token.
METAL_FUNC int feature_of(device const int *words, int row) {
  const int at = step_head(words).feature;
  return at < 0 ? -1 : words[at + row];
}
METAL_FUNC device const float *feature_line(device const int *words, device const float *features,
                                            int line, int plane) {
  device const pe_metal_step &head = step_head(words);
  return features + (size_t)(line * head.feature_planes + plane) * (size_t)head.feature_width;
}

METAL_FUNC bool has_vec(constant pe_metal_call &call, uint i) {
  return (call.vecs >> i & 1u) != 0u;
}

METAL_FUNC size_t line_at(int row, int step) { return (size_t)row * (size_t)step; }

// Where value j of an input is in the line that it is a part of.
METAL_FUNC size_t part_at(constant pe_metal_part &p, int j) {
  return (size_t)(p.count == 0 ? j : p.from + j / p.count * p.dim + j % p.count);
}

// ---- joined values, see pe_concat_args ----------------------------------------------------------

METAL_FUNC int concat_width(constant pe_concat_args &args) {  // of a head
  int width = 0;
  for (int i = 0; i < args.inputs; i++) width += args.width[i];
  return width;
}

struct concat_place {  // one of the inputs, and a value of it
  int input, at;
};

METAL_FUNC concat_place concat_at(constant pe_concat_args &args, int column) {
  const int width = concat_width(args), head = column / width;
  concat_place p;
  p.input = 0, p.at = column % width;
  while (p.at >= args.width[p.input]) p.at -= args.width[p.input], p.input++;
  if (args.shared[p.input] == 0) p.at += head * args.width[p.input];
  return p;
}

// ---- maps: chains of elementwise operations, see pe_map_args ------------------------------------

METAL_FUNC float map_operand(constant pe_map_args &args, thread const float *registers, int i) {
  return i < 0 ? args.value[-1 - i] : registers[i];
}

// The value of input i that a column reads.
METAL_FUNC int map_column(constant pe_map_args &args, int i, int column) {
  return column / max(args.input[i].repeat, 1) % args.input[i].width;
}

// After the inputs are loaded.
METAL_FUNC float map_result(constant pe_map_args &args, thread float *registers) {
  for (int s = 0; s < args.steps; s++) {
    const int op = args.step[s].op;
    const float x = map_operand(args, registers, args.step[s].a);
    registers[args.step[s].to] =
        pe_map_is_unary(op) ? unary(op, x)
                            : binary(op, x, map_operand(args, registers, args.step[s].b));
  }
  return registers[args.result];
}

// What a map after the op makes of a result; `product` is that of one more matrix, if there is one.
METAL_FUNC float mapped(constant pe_metal_after &after, device const float *in0,
                        device const float *in1, device const float *in2,
                        device const float *in3, int row, int column, float result,
                        float product) {
  if (after.map.inputs == 0) return result;
  float registers[PE_MAP_REGISTERS];
  for (int i = 0; i < after.map.inputs; i++) {
    device const float *in = i == 0 ? in0 : i == 1 ? in1 : i == 2 ? in2 : in3;
    if (i == after.self || i == after.product) {
      registers[i] = i == after.self ? result : product;
      continue;
    }
    const float x = in[line_at(row, after.step[i]) +
                       part_at(after.part[i], map_column(after.map, i, column))];
    registers[i] = after.function[i] < 0 ? x : unary(after.function[i], x);
  }
  return map_result(after.map, registers);
}

#endif
