/* test_shortlist.c - Metal's shortlists of logits against a sort of the line and, with the sums of
 * blocks, against those that the sampler makes of a row. */
#include "kernels/metal/args.h"
#include "kernels/scan.h"
#include "metal_main.h"
#include "runtime/batch/sampler_listed.h"

#include <math.h>

enum { OUTPUTS = 3, PAD = 5 };

static uint32_t state = 1;
static uint32_t random32(void) { return state = state * 1664525u + 1013904223u; }
static float uniform(void) { return (float)(random32() >> 8) * 0x1p-24f; }

typedef struct lines {
  int32_t n, step, stretches, blocks;
  pe_wanted wanted[OUTPUTS];
  float *x, *peaks, *sums;
  int32_t *list, *words;
} lines;

static lines lines_of(int32_t n) {
  lines l = {.n = n, .step = n + PAD, .stretches = (n + 255) / 256, .blocks = (n + 511) / 512};
  l.x = malloc((size_t)(OUTPUTS * l.step) * 4);
  l.peaks = malloc((size_t)(OUTPUTS * l.stretches) * 4);
  l.list = malloc((size_t)OUTPUTS * PE_SHORTLIST_WORDS * 4);
  l.sums = malloc((size_t)(OUTPUTS * 2 * l.blocks) * 4);
  l.words = calloc(1, sizeof(pe_metal_step) + sizeof l.wanted);
  for (int32_t i = 0; i < OUTPUTS * l.step; i++)
    l.x[i] = i % l.step < n ? uniform() * 20 - 10 : INFINITY; /* of a padded head: not looked at */
  return l;
}

static void lines_free(lines *l) {
  free(l->x), free(l->peaks), free(l->list), free(l->words), free(l->sums);
}

static void launch(const lines *l, const char *kernel, uint32_t groups, uint32_t outputs,
                   uint32_t scales) {
  pe_metal_shortlist_args args = {l->n, l->step, l->stretches, l->blocks};
  msl_launch m = {.kernel = msl_find(kernel), .groups = {groups, outputs, scales}, .threads = 256};
  const struct {
    void *at;
    size_t bytes;
  } slot[PE_SLOTS] = {
      [PE_SLOT_ARGS] = {&args, sizeof args},
      [PE_SLOT_OUT] = {scales == 2 ? (void *)l->sums : l->list,
                       (size_t)OUTPUTS * (scales == 2 ? 2 * l->blocks : PE_SHORTLIST_WORDS) * 4},
      [PE_SLOT_SCRATCH] = {l->peaks, (size_t)(OUTPUTS * l->stretches) * 4},
      [PE_SLOT_IN0] = {l->x, (size_t)(OUTPUTS * l->step) * 4},
      [PE_SLOT_STEP] = {l->words, sizeof(pe_metal_step) + sizeof l->wanted},
  };
  for (const msl_argument *a = m.kernel->arguments; a->index >= 0; a++)
    m.buffer[a->index].at = slot[a->index].at, m.buffer[a->index].bytes = slot[a->index].bytes;
  if (msl_run(&m)) printf("    %s\n", msl_fault_text());
}

static void run(lines *l, int order) {
  pe_metal_step head = {.outputs = OUTPUTS, .wanted = sizeof(pe_metal_step) / 4};
  memcpy(l->words, &head, sizeof head);
  memcpy(l->words + head.wanted, l->wanted, sizeof l->wanted);
  memset(l->list, 0xee, (size_t)OUTPUTS * PE_SHORTLIST_WORDS * 4);
  memset(l->peaks, 0xff, (size_t)(OUTPUTS * l->stretches) * 4);
  memset(l->sums, 0xee, (size_t)(OUTPUTS * 2 * l->blocks) * 4);
  msl_schedule(order);
  launch(l, "shortlist_peaks", (uint32_t)(l->stretches + 7) / 8, OUTPUTS, 1);
  launch(l, "shortlist", OUTPUTS, 1, 1);
  launch(l, "shortlist_sums", (uint32_t)(l->blocks + 15) / 16, OUTPUTS, 2);
  CHECK_INT(msl_faults(), 0);
  msl_forget();
}

static int descending(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

/* The logit from which on a list has all: the k-th highest peak. */
static float border(const float *x, int32_t n, int32_t k) {
  float peak[64], most;
  int32_t count = 0;
  for (int32_t from = 0; from < n; from += PE_SHORTLIST_STRETCH) {
    most = -INFINITY;
    for (int32_t i = from; i < n && i < from + PE_SHORTLIST_STRETCH; i++) most = fmaxf(most, x[i]);
    peak[count++] = most;
  }
  qsort(peak, (size_t)count, sizeof *peak, descending);
  return k > count || peak[k - 1] == -INFINITY ? -3.4028234664e38f : peak[k - 1];
}

static void check_list(const lines *l, int output) {
  const float *x = l->x + output * l->step;
  const int32_t *list = l->list + output * PE_SHORTLIST_WORDS;
  const float from = border(x, l->n, l->wanted[output].best);
  int32_t count = 0;
  for (int32_t i = 0; i < l->n; i++) {
    if (!(x[i] >= from)) continue;
    if (count < PE_WANTED_ROOM) {
      CHECK_INT(list[1 + count], i);
      CHECK(!memcmp(&list[1 + PE_WANTED_ROOM + count], &x[i], 4));
    }
    count++;
  }
  CHECK_INT(list[0], count);
  CHECK(count >= l->wanted[output].best || l->wanted[output].best > l->n / 2);
}

/* As the sampler makes it from the row, in all bits. */
static void check_same(const lines *l, int output, pe_sampler *s) {
  const float *x = l->x + output * l->step;
  const int32_t *list = l->list + output * PE_SHORTLIST_WORDS;
  pe_shortlist want;
  if (!pe_sampler_list(s, x, &l->wanted[output], &want)) {
    CHECK(list[0] < 1 || list[0] > PE_WANTED_ROOM);
    return;
  }
  CHECK_INT(list[0], want.count);
  CHECK(!memcmp(list + 1, want.id, (size_t)want.count * 4));
  CHECK(!memcmp(list + 1 + PE_WANTED_ROOM, want.logit, (size_t)want.count * 4));
  for (int i = 0; i < 2; i++) {
    const float *sum = l->sums + (2 * output + i) * l->blocks;
    static const uint32_t none = 0xeeeeeeee;
    for (int32_t k = 0; k < l->blocks; k++)
      CHECK(!memcmp(&sum[k], want.sum[i] ? (const void *)&want.sum[i][k] : &none, 4));
  }
}

static void check_all(lines *l) {
  pe_sampler *s = NULL;
  CHECK(!pe_sampler_open(l->n, &s, NULL));
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    run(l, order);
    for (int i = 0; i < OUTPUTS; i++)
      if (l->wanted[i].best)
        check_list(l, i), check_same(l, i, s);
      else /* nobody asked */
        CHECK_INT(l->list[i * PE_SHORTLIST_WORDS], (int32_t)0xeeeeeeee);
  }
  pe_sampler_close(s);
}

static void test_sizes(void) {
  static const int32_t sizes[] = {1, 31, 256, 257, 1000, 9000, 16384};
  for (int i = 0; i < 7; i++)
    for (int32_t best = 1; best <= 64 && best <= sizes[i]; best = best * 2 + 1) {
      lines l = lines_of(sizes[i]);
      l.wanted[0].best = best, l.wanted[2].best = 1;
      check_all(&l);
      lines_free(&l);
    }
}

/* Equal logits, zeros of both signs, neighbours, and tokens that are out. */
static void test_ties(void) {
  lines l = lines_of(5000);
  for (int32_t i = 0; i < l.n; i++) {
    l.x[i] = (float)(random32() >> 24) * 0.5f - 100;
    l.x[l.step + i] = random32() >> 31 ? 0.0f : -0.0f;
    if (i % 900) l.x[l.step + i] = -1;
    l.x[2 * l.step + i] = i >= 700 && i < 760 ? uniform() : -INFINITY;
  }
  l.wanted[0].best = 3, l.wanted[1].best = 4, l.wanted[2].best = 50;
  check_all(&l);
  lines_free(&l);
}

/* What the host must look at itself: NaN, infinity, nothing finite, too many. */
static void test_refused(void) {
  lines l = lines_of(4000);
  l.x[3999] = NAN, l.x[l.step] = INFINITY;
  for (int32_t i = 0; i < l.n; i++) l.x[2 * l.step + i] = -INFINITY;
  for (int i = 0; i < OUTPUTS; i++) l.wanted[i].best = 1 + i;
  run(&l, 0);
  for (int i = 0; i < OUTPUTS; i++) CHECK_INT(l.list[i * PE_SHORTLIST_WORDS], -1);
  for (int32_t i = 0; i < OUTPUTS * l.step; i++) l.x[i] = 1;
  check_all(&l); /* all are equal: 4000, of which there is room for some */
  lines_free(&l);
}

/* Sums of blocks, at all kinds of scales, where lines end in blocks and lanes. */
static void test_sums(void) {
  static const int32_t sizes[] = {1, 15, 17, 511, 512, 513, 1024, 1040, 5000, 16001};
  static const float scales[] = {1, 1 / 0.7f, 0.5f, 8, 1e-3f, 1e3f, 1e-30f, 1e30f, 2e38f, FLT_MIN};
  for (int i = 0; i < 10; i++)
    for (int k = 0; k < 10; k++) {
      lines l = lines_of(sizes[i]);
      for (int o = 0; o < OUTPUTS; o++) l.wanted[o].best = 1;
      l.wanted[0].sums[0] = pe_scan_scale_of(1), l.wanted[0].sums[1] = pe_scan_scale_of(scales[k]);
      l.wanted[2].sums[1] = pe_scan_scale_of(scales[9 - k]);
      for (int32_t j = 0; j < l.n; j++) l.x[2 * l.step + j] *= 10;
      check_all(&l);
      lines_free(&l);
    }
}

/* The wide head of a small model. */
static void test_wide_sums(void) {
  lines l = lines_of(32003);
  for (int o = 0; o < OUTPUTS; o++)
    l.wanted[o] = (pe_wanted){64, {pe_scan_scale_of(1), pe_scan_scale_of(0.8f)}};
  run(&l, 0);
  pe_sampler *s = NULL;
  CHECK(!pe_sampler_open(l.n, &s, NULL));
  for (int o = 0; o < OUTPUTS; o++) check_same(&l, o, s);
  pe_sampler_close(s), lines_free(&l);
}

/* Logits as far apart as floats can be, at the border of what has a weight, equal, and none. */
static void test_far_sums(void) {
  static const float tops[] = {0,     5,     86.9f,  -86.9f, 1e4f,  1e8f,
                               -1e8f, 1e30f, -1e30f, 3e38f,  1e-30f};
  static const float scales[] = {1, 1e-30f, 1e30f, 0.37f};
  for (int i = 0; i < 11; i++)
    for (int k = 0; k < 4; k++) {
      lines l = lines_of(1300);
      const pe_scan_scale scale = pe_scan_scale_of(scales[k]);
      const float low = tops[i] - scale.far;
      for (int o = 0; o < OUTPUTS; o++) l.wanted[o] = (pe_wanted){1, {pe_scan_scale_of(1), scale}};
      for (int32_t j = 0; j < l.n; j++) {
        float v = low > -INFINITY ? low : -FLT_MAX; /* some floats around the lowest that counts */
        for (int n = (int)(random32() >> 29); n > 0; n--)
          v = nextafterf(v, j % 2 ? FLT_MAX : -FLT_MAX);
        l.x[j] = v < tops[i] ? v : tops[i];
        l.x[l.step + j] = tops[i];
        const float far[] = {-INFINITY, -1e30f, -FLT_MAX, tops[i] - 80 / scales[k], tops[i]};
        v = far[random32() >> 8 & 3];
        l.x[2 * l.step + j] = v < tops[i] ? v : tops[i];
      }
      l.x[700] = l.x[2 * l.step + 1299] = tops[i];
      for (int32_t j = 0; j < 1100; j++) l.x[l.step + j] = -INFINITY; /* not too many are equal */
      check_all(&l);
      lines_free(&l);
    }
}

static const check_test tests[] = {{"sizes", test_sizes},         {"ties", test_ties},
                                   {"refused", test_refused},     {"sums", test_sums},
                                   {"wide_sums", test_wide_sums}, {"far_sums", test_far_sums}};

int main(int argc, char **argv) {
  return metal_main("metal shortlist", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
