/* metal_before.h - recurrences that compute their inputs: the bits of the ops one by one. */
#ifndef METAL_BEFORE_H
#define METAL_BEFORE_H

#include "metal_run.h"

/* An op over the rows of a case, alone; the caller frees the buffers. */
static inline pe_cpu_view metal_alone(const metal_case *k, pe_op op, pe_cpu_call c, int64_t width,
                                      int64_t vec, metal_buffers *b) {
  c.step = k->c->step, c.rows = k->c->rows, c.out = view_new(c.rows, width);
  const metal_case alone = {.op = op, .c = &c, .width = width, .vec = {vec, vec, vec, vec}};
  metal_run(&alone, b);
  const pe_cpu_view out = {.at = b->owned[PE_SLOT_OUT], .step = c.out.step};
  view_free(&c.out);
  return out;
}

/* Runs the case with `before` in every order; results and state are those of `want`. */
static inline void metal_check_same(const metal_case *k, const void *before, size_t size,
                                    const float *vec, int64_t n, const metal_buffers *want) {
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b = {0};
    metal_put(&b, PE_SLOT_BEFORE, before, size);
    if (vec) metal_put(&b, PE_SLOT_VEC0, vec, (size_t)n * 4);
    msl_schedule(order), metal_run_with(k, &b);
    CHECK(metal_same(&b, want, PE_SLOT_OUT) && metal_same(&b, want, PE_SLOT_STATE));
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
}

/* The delta rule with norms of queries and keys, and maps of decays (with a vector) and betas; bit
 * i of `which`: input number i of these. */
static inline void metal_check_delta_before(const metal_case *k, unsigned which) {
  const pe_delta_args *a = &k->c->args.delta;
  const int32_t keys = a->key_heads * a->key, decays = a->heads * (a->channel ? a->key : 1);
  static const int input[] = {0, 1, 3, 4};
  pe_metal_before before = {.norms = {which & 1, which >> 1 & 1},
                            .maps = {which >> 2 & 1, which >> 3 & 1}};
  float *vec = calloc((size_t)decays, sizeof *vec);
  metal_buffers made[4], want;
  pe_cpu_call c = *k->c;
  metal_case apart = *k;
  for (int i = 0; i < decays; i++) vec[i] = uniform();
  memset(made, 0, sizeof made), msl_forget(), msl_schedule(0);
  for (int i = 0; i < 2; i++)
    before.norm[i] = (pe_norm_args){a->key, a->key_heads, 0, 1e-5f, 0, i ? 1 : 0.3f, i == 0, 0};
  before.map[0] = (pe_map_args){.width = decays,
                                .inputs = 2,
                                .steps = 2,
                                .result = 2,
                                .input = {{decays, 1, 1}, {decays, 1, 0}},
                                .step = {{PE_MAP_ADD, 0, 1, 2}, {PE_MAP_SIGMOID, 2, 0, 2}}};
  before.map[1] = (pe_map_args){.width = a->heads,
                                .inputs = 1,
                                .steps = 1,
                                .input = {{a->heads, 1, 0}},
                                .step = {{PE_MAP_SIGMOID, 0, 0, 0}}};
  for (int i = 0; i < 4; i++) {
    if (!(which >> i & 1)) continue;
    pe_cpu_call one = {0};
    one.in[i == 2] = k->c->in[input[i]];
    if (i == 2) one.vec[0] = vec;
    if (i < 2)
      one.args.norm = before.norm[i];
    else
      one.args.map = before.map[i - 2];
    c.in[input[i]] = metal_alone(k, i < 2 ? PE_OP_NORM : PE_OP_MAP, one,
                                 i < 2 ? keys : before.map[i - 2].width, decays, &made[i]);
  }
  apart.c = &c, metal_run(&apart, &want);
  metal_check_same(k, &before, sizeof before, vec, decays, &want);
  for (int i = 0; i < 4; i++) metal_free(&made[i]);
  metal_free(&want), free(vec);
}

/* A convolution of three joined inputs, one of which all heads share. */
static inline void metal_check_conv_before(const metal_case *k) {
  const int32_t width = k->c->args.conv.channels / 2;
  const pe_concat_args concat = {3, 2, {width - 30, 10, 20}, {0, 1, 0}};
  pe_cpu_call joined = {.args.concat = concat}, c = *k->c, from = *k->c;
  metal_case apart = *k, inside = *k;
  metal_buffers made, want;
  for (int i = 0; i < 3; i++) {
    const int32_t n = concat.width[i] * (concat.shared[i] ? 1 : 2);
    joined.in[i] = from.in[i] = view_new(c.rows, n), view_fill(&from.in[i], c.rows, n);
  }
  msl_forget(), msl_schedule(0);
  c.in[0] = metal_alone(k, PE_OP_CONCAT, joined, 2 * (int64_t)width, 0, &made);
  apart.c = &c, metal_run(&apart, &want);
  inside.c = &from, metal_check_same(&inside, &concat, sizeof concat, NULL, 0, &want);
  for (int i = 0; i < 3; i++) view_free(&from.in[i]);
  metal_free(&made), metal_free(&want);
}

#endif
