/* metal_after.h - ops whose kernel does the map or norm after them: the bits of each one by one. */
#ifndef METAL_AFTER_H
#define METAL_AFTER_H

#include "metal_run.h"

/* (a * op + sigmoid(b)) * v, where a value of b stands for three columns and v is a vector. */
static inline pe_metal_after metal_after_of(int32_t width) {
  const int32_t few = (width + 2) / 3;
  return (pe_metal_after){
      .map = {.width = width,
              .inputs = 4,
              .steps = 3,
              .result = 4,
              .input = {{width, 1, 0}, {width, 1, 0}, {few, 3, 0}, {width, 1, 1}},
              .step = {{PE_MAP_MUL, 0, 1, 4}, {PE_MAP_ADD, 4, 2, 4}, {PE_MAP_MUL, 4, 3, 4}}},
      .self = 1,
      .product = -1,
      .function = {-1, -1, PE_MAP_SIGMOID, -1}};
}

/* A map alone; the caller frees the buffers. */
static inline pe_cpu_view metal_map_alone(const metal_case *k, const pe_map_args *map,
                                          const pe_cpu_view *in, const float *vec,
                                          metal_buffers *b) {
  pe_cpu_call c = {.step = k->c->step, .rows = k->c->rows, .out = view_new(k->c->rows, map->width)};
  for (int i = 0; i < map->inputs; i++)
    if (!map->input[i].fixed) c.in[i] = in[i];
  c.args.map = *map, c.vec[3] = vec;
  const metal_case alone = {
      .op = PE_OP_MAP, .c = &c, .width = map->width, .vec = {0, 0, 0, map->width}};
  metal_run(&alone, b);
  const pe_cpu_view out = {.at = b->owned[PE_SLOT_OUT], .step = c.out.step};
  view_free(&c.out);
  return out;
}

/* The case with a map after it is that of `plain`, and its state that of `state`. The inputs of the
 * map are in the slots from `first` on; b is the middle of a wider line. A norm in between has its
 * weight in slot 13. */
static inline void metal_check_mapped(const metal_case *k, int first, const metal_buffers *plain,
                                      const metal_buffers *state, const float *weight) {
  const int32_t rows = k->c->rows, width = (int32_t)k->width;
  pe_metal_after after = metal_after_of(width);
  const int32_t few = after.map.input[2].width;
  const pe_map_args function = {.width = few,
                                .inputs = 1,
                                .steps = 1,
                                .input = {{few, 1, 0}},
                                .step = {{PE_MAP_SIGMOID, 0, 0, 0}}};
  pe_cpu_view a = view_new(rows, width), b = view_new(rows, few), wide = view_new(rows, few + 5);
  metal_buffers functions, mapped;
  float *vec = calloc((size_t)width, sizeof *vec);
  for (int32_t i = 0; i < width; i++) vec[i] = uniform();
  view_fill(&a, rows, width), view_fill(&b, rows, few), view_fill(&wide, rows, few + 5);
  for (int32_t r = 0; r < rows; r++)
    memcpy(wide.at + r * wide.step + 3, b.at + r * b.step, (size_t)few * 4);
  const pe_cpu_view in[] = {a,
                            {.at = plain->owned[PE_SLOT_OUT], .step = k->c->out.step},
                            metal_map_alone(k, &function, &b, NULL, &functions)};
  metal_map_alone(k, &after.map, in, vec, &mapped);
  after.step[0] = (int32_t)a.step, after.step[2] = (int32_t)wide.step;
  after.part[2] = (pe_metal_part){3, few, few + 5};
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers joined = {0};
    metal_put(&joined, PE_SLOT_AFTER, &after, sizeof after);
    metal_put(&joined, first, a.at, (size_t)(rows * a.step) * 4);
    metal_put(&joined, first + 2, wide.at, (size_t)(rows * wide.step) * 4);
    metal_put(&joined, first + 3, vec, (size_t)width * 4);
    if (k->norm.weights) metal_put(&joined, PE_SLOT_SCALES2, weight, (size_t)k->norm.weights * 4);
    msl_schedule(order), metal_run_with(k, &joined);
    CHECK(metal_same(&joined, &mapped, PE_SLOT_OUT));
    CHECK(metal_same(&joined, state, PE_SLOT_STATE));
    metal_free(&joined);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&functions), metal_free(&mapped);
  view_free(&a), view_free(&b), view_free(&wide), free(vec);
}

static inline void metal_check_after(const metal_case *k, int first) {
  metal_buffers alone;
  msl_forget(), msl_schedule(0), metal_run(k, &alone);
  metal_check_mapped(k, first, &alone, &alone, NULL);
  metal_free(&alone);
}

/* A delta rule that normalizes its heads with so many weights, and maps the result. */
static inline void metal_check_delta_norm(const metal_case *k, int32_t weights) {
  const pe_delta_args *a = &k->c->args.delta;
  const pe_norm_args norm = {a->value, a->heads, weights, 1e-5f, 0.25f, 0.5f, 0, 0};
  float *weight = calloc((size_t)weights + 1, sizeof *weight);
  metal_case inside = *k;
  metal_buffers alone, normed, b = {0};
  for (int32_t i = 0; i < weights; i++) weight[i] = uniform();
  msl_forget(), msl_schedule(0), metal_run(k, &alone);
  pe_cpu_call c = {.step = k->c->step, .rows = k->c->rows, .out = view_new(k->c->rows, k->width)};
  c.in[0] = (pe_cpu_view){.at = alone.owned[PE_SLOT_OUT], .step = k->c->out.step};
  c.args.norm = norm, c.vec[0] = weights ? weight : NULL;
  const metal_case apart = {.op = PE_OP_NORM, .c = &c, .width = k->width, .vec = {weights}};
  metal_run(&apart, &normed), view_free(&c.out);
  inside.norm = norm;
  if (weights) metal_put(&b, PE_SLOT_SCALES2, weight, (size_t)weights * 4);
  metal_run_with(&inside, &b);
  CHECK(metal_same(&b, &normed, PE_SLOT_OUT) && metal_same(&b, &alone, PE_SLOT_STATE));
  metal_check_mapped(&inside, PE_SLOT_DATA, &normed, &alone, weight);
  metal_free(&b), metal_free(&alone), metal_free(&normed), free(weight);
}

#endif
