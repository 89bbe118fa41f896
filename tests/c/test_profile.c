/* test_profile.c - what a call costs, op by op, in bytes and multiply-adds; the times of threads.
 * tests/lua/test_profile.lua has a whole model. */
#include "check.h"
#include "runtime/device/profile.h"

enum { ROWS = 3, STEP = 20 };

static const pe_segment segments[] = {{.first = 0, .count = 2, .past = 10},
                                      {.first = 2, .count = 1, .past = 5}};
static const pe_region regions[] = {{0, 3}, {3, 5}};

/* 10 weight rows of 64 bytes, with scales and biases of 4 bytes each: 720 bytes. */
static const uint8_t stored[1];
static const pe_quant_matrix matrix = {.rows = 10,
                                       .cols = 128,
                                       .row_bytes = 64,
                                       .scale_bytes = 4,
                                       .data = stored,
                                       .scales = stored,
                                       .biases = stored};

typedef struct case_of {
  const char *name;
  pe_op op;
  pe_op_args args;
  bool two; /* a second matrix */
  double weights, cache, macs;
} case_of;

#define CACHE                                                                                      \
  { .heads = 2, .key = 16, .value = 8, .block = 32, .type = PE_KV_F16 }
static const case_of cases[] = {
    {"embed", PE_OP_EMBED, {.embed = {1, 0}}, false, ROWS * 72, 0, 0},
    {"linear", PE_OP_LINEAR, {.linear = {128, 10, 0}}, false, 720, 0, ROWS * 1280},
    {"gated", PE_OP_GATED, {.gated = {128, 10, 0}}, true, 1440, 0, ROWS * 2560},
    /* six pairs: more than the four experts, fewer than eight */
    {"experts", PE_OP_EXPERT_LINEAR, {.expert = {128, 10, 4, 2, 0, 0}}, false, 4 * 720, 0, 7680},
    {"few", PE_OP_EXPERT_LINEAR, {.expert = {128, 10, 8, 2, 0, 0}}, false, 6 * 720, 0, 7680},
    {"gates", PE_OP_EXPERT_GATED, {.expert = {128, 10, 4, 2, 0, 0}}, true, 8 * 720, 0, 15360},
    {"heads", PE_OP_HEAD_LINEAR, {.head = {2, 128, 10, 0}}, false, 1440, 0, ROWS * 2560},
    {"store", PE_OP_STORE, {.store = {.cache = CACHE}}, false, 0, ROWS * 96, 0},
    /* 11 + 12 and 6 keys, 4 heads of 24; 12 and 6 tokens of 96 bytes */
    {"all keys",
     PE_OP_ATTENTION,
     {.attention = {CACHE, 4, 8, 0, 0, 0, 0}},
     false,
     0,
     18 * 96,
     29 * 96},
    {"window of 20",
     PE_OP_ATTENTION,
     {.attention = {CACHE, 4, 8, 20, 0, 0, 0}},
     false,
     0,
     18 * 96,
     29 * 96},
    /* both queries see 3 keys, together 4; the other one 3 */
    {"window of 3",
     PE_OP_ATTENTION,
     {.attention = {CACHE, 4, 8, 3, 0, 0, 0}},
     false,
     0,
     7 * 96,
     9 * 96},
    /* the first query sees all its 11 keys, the second one as many of 12 */
    {"window of 11",
     PE_OP_ATTENTION,
     {.attention = {CACHE, 4, 8, 11, 0, 0, 0}},
     false,
     0,
     18 * 96,
     28 * 96},
    {"regions",
     PE_OP_REGION_ATTENTION,
     {.region_attention = {4, 4, 16, 8, PE_REGION_WINDOW, 0}},
     false,
     0,
     0,
     34 * 96},
    /* states are read and written once per segment */
    {"conv", PE_OP_CONV, {.conv = {8, 4, -1}}, false, 0, 2 * 2 * 4 * 24, ROWS * 32},
    {"delta", PE_OP_DELTA, {.delta = {2, 1, 5, 7, 0}}, false, 0, 16 * 70, ROWS * 4 * 70},
    {"ssm", PE_OP_SSM, {.ssm = {2, 5, 1, 7, 0, 1}}, false, 0, 16 * 70, ROWS * 3 * 70},
    {"map", PE_OP_MAP, {.map = {.width = 4}}, false, 0, 0, 0},
};

static pe_profile *open_profile(int32_t threads, int32_t count) {
  pe_profile *p = NULL;
  pe_error err = {0};
  CHECK_OK(pe_profile_open(threads, count, &p, &err), err);
  return p;
}

static pe_cpu_call call_of(const case_of *a, const pe_step *step) {
  pe_cpu_call c = {.step = step, .rows = ROWS, .args = a->args};
  if (a->weights > 0) c.mat = &matrix;
  if (a->two) c.mat2 = &matrix;
  return c;
}

static void costs(void) {
  pe_step step = {.rows = ROWS, .segments = 2, .segment = segments};
  step.tower.region[PE_REGION_WINDOW] = (pe_regions){regions, 2, 5};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const case_of *a = &cases[i];
    const pe_instr x = {.op = a->op};
    pe_profile *p = open_profile(1, 2);
    const pe_cpu_call c = call_of(a, &step);
    p->job[0].instr = p->job[1].instr = &x, p->job[1].part = 1;
    for (int twice = 1; twice < 3; twice++) {
      pe_profile_count(p, 0, &c), pe_profile_count(p, 1, &c);
      const pe_cost *got = &p->job[0].cost;
      if (got->weights != twice * a->weights || got->cache != twice * a->cache ||
          got->macs != twice * a->macs || got->values != 0) {
        check_failures++;
        printf("    %s: %g bytes of weights, %g of caches, %g of values, %g multiply-adds\n",
               a->name, got->weights, got->cache, got->values, got->macs);
      }
    }
    const pe_cost none = p->job[1].cost; /* the second op of a code */
    CHECK(none.weights == 0 && none.cache == 0 && none.values == 0 && none.macs == 0);
    pe_profile_close(p);
  }
}

/* Packed weights count as they are packed. */
static void packed(void) {
  const pe_quant_matrix m = {
      .quant = {PE_QUANT_AFFINE, 4, 64, PE_BF16}, .dtype = PE_BF16, .rows = 40, .cols = 128};
  pe_pack pack;
  pe_pack_describe(&m, &pack);
  const pe_instr x = {.op = PE_OP_LINEAR};
  const pe_step step = {.rows = ROWS};
  const pe_cpu_call c = {
      .step = &step, .rows = ROWS, .mat = &matrix, .pack = &pack, .args.linear = {128, 40, 0}};
  pe_profile *p = open_profile(1, 1);
  p->job[0].instr = &x;
  pe_profile_count(p, 0, &c);
  CHECK_INT((int64_t)p->job[0].cost.weights, (int64_t)pe_pack_bytes(&m));
  CHECK_INT((int64_t)p->job[0].cost.macs, ROWS * 128 * 40);
  pe_profile_close(p);
}

/* Lines that are read and written. A value that was rounded or arranged is read in that form; the
 * op that does it reads the lines and writes the codes. */
static void values(void) {
  float line[1];
  pe_int16_rows codes = {.cols = 128, .act = 64};
  pe_amx16_rows planes = {.rows = ROWS, .cols = 128};
  const pe_instr x = {.op = PE_OP_MAP};
  const pe_step step = {.rows = ROWS};
  const double lines = ROWS * STEP * sizeof(float), rounded = pe_int16_bytes(ROWS, 128, 64),
               arranged = pe_amx16_bytes(ROWS, 128);
  pe_cpu_call c = {.step = &step, .rows = ROWS};
  c.out = c.in[0] = c.in[1] = (pe_cpu_view){line, STEP};
  const struct {
    bool rounds;
    const pe_int16_rows *rounded;
    const pe_amx16_rows *arranged;
    double want;
  } ways[] = {{false, NULL, NULL, 3 * lines},
              {false, &codes, NULL, 2 * lines + rounded},
              {true, &codes, NULL, 2 * lines + rounded},
              {false, &codes, &planes, 2 * lines + arranged},
              {true, &codes, &planes, 2 * lines + arranged},
              {false, &codes, &(pe_amx16_rows){0}, 2 * lines + rounded}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    pe_profile *p = open_profile(1, 1);
    p->job[0].instr = &x, p->job[0].rounds = ways[i].rounds;
    c.rounded[0] = ways[i].rounded, c.arranged = ways[i].arranged;
    pe_profile_count(p, 0, &c);
    CHECK_NEAR(p->job[0].cost.values, ways[i].want, 0);
    pe_profile_close(p);
  }
}

/* Each thread has its own times; their sums are those of the jobs. */
static void times(void) {
  enum { THREADS = 3, JOBS = 4 };
  pe_profile *p = open_profile(THREADS, JOBS);
  for (int t = 0; t < THREADS; t++)
    for (int i = 0; i < JOBS; i++) {
      p->time[t * JOBS + i] = (pe_profile_time){100 * t + i, 1000 * t + 10 * i};
    }
  pe_profile_sum(p), pe_profile_sum(p);
  for (int i = 0; i < JOBS; i++) {
    CHECK_INT(p->job[i].busy_ns, 300 + 3 * i);
    CHECK_INT(p->job[i].wait_ns, 3000 + 30 * i);
  }
  p->steps = p->wall_ns = p->waits = 7, p->job[JOBS - 1].cost.macs = 5;
  pe_profile_reset(p), pe_profile_sum(p);
  CHECK(!p->steps && !p->wall_ns && !p->waits && p->job[JOBS - 1].cost.macs == 0);
  for (int i = 0; i < JOBS; i++) CHECK(!p->job[i].busy_ns && !p->job[i].wait_ns);

  const int64_t begin = pe_clock_ns();
  pe_profile_clock c = pe_profile_start(p, 2);
  while (pe_clock_ns() == c.last_ns) {}
  pe_profile_waited(&c, 1);
  while (pe_clock_ns() == c.last_ns) {}
  pe_profile_worked(&c, 3);
  const pe_profile_time *own = p->time + 2 * JOBS;
  CHECK(own[1].wait_ns > 0 && own[3].busy_ns > 0);
  CHECK(own[1].wait_ns + own[3].busy_ns <= pe_clock_ns() - begin);
  CHECK(!own[1].busy_ns && !own[3].wait_ns && !own[0].wait_ns && !p->time[3].busy_ns);
  pe_profile_close(p);
  c = pe_profile_start(NULL, 0);
  pe_profile_waited(&c, 0), pe_profile_worked(&c, 0);
  CHECK(!c.time);
}

static void without_memory(void) {
  pe_profile *p = NULL;
  pe_error err = {0};
  for (int64_t n = 1; n < 4; n++) {
    pe_alloc_fail_at(n);
    CHECK_INT(pe_profile_open(2, 3, &p, &err), PE_ENOMEM);
    pe_alloc_fail_at(0);
    CHECK(!p);
  }
  pe_profile_close(NULL);
}

static const check_test tests[] = {{"costs", costs},
                                   {"packed weights", packed},
                                   {"values", values},
                                   {"times", times},
                                   {"without memory", without_memory}};
CHECK_MAIN("profile", tests)
