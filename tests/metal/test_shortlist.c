/* test_shortlist.c - Metal's shortlists of logits against a sort of the line. */
#include "kernels/metal/args.h"
#include "metal_main.h"

#include <math.h>

enum { OUTPUTS = 3, PAD = 5 };

static uint32_t state = 1;
static uint32_t random32(void) { return state = state * 1664525u + 1013904223u; }
static float uniform(void) { return (float)(random32() >> 8) * 0x1p-24f; }

typedef struct lines {
  int32_t n, step, stretches, best[OUTPUTS];
  float *x, *peaks;
  int32_t *list, *words;
} lines;

static lines lines_of(int32_t n) {
  lines l = {.n = n, .step = n + PAD, .stretches = (n + PE_SHORTLIST_STRETCH - 1) / 256};
  l.x = malloc((size_t)(OUTPUTS * l.step) * 4);
  l.peaks = malloc((size_t)(OUTPUTS * l.stretches) * 4);
  l.list = malloc((size_t)OUTPUTS * PE_SHORTLIST_WORDS * 4);
  l.words = calloc(1, sizeof(pe_metal_step) + sizeof l.best);
  for (int32_t i = 0; i < OUTPUTS * l.step; i++)
    l.x[i] = i % l.step < n ? uniform() * 20 - 10 : INFINITY; /* of a padded head: not looked at */
  return l;
}

static void lines_free(lines *l) { free(l->x), free(l->peaks), free(l->list), free(l->words); }

static void launch(const lines *l, const char *kernel, uint32_t groups, uint32_t outputs) {
  pe_metal_shortlist_args args = {l->n, l->step, l->stretches};
  msl_launch m = {.kernel = msl_find(kernel), .groups = {groups, outputs, 1}, .threads = 256};
  const struct {
    void *at;
    size_t bytes;
  } slot[PE_SLOTS] = {
      [PE_SLOT_ARGS] = {&args, sizeof args},
      [PE_SLOT_OUT] = {l->list, (size_t)OUTPUTS * PE_SHORTLIST_WORDS * 4},
      [PE_SLOT_SCRATCH] = {l->peaks, (size_t)(OUTPUTS * l->stretches) * 4},
      [PE_SLOT_IN0] = {l->x, (size_t)(OUTPUTS * l->step) * 4},
      [PE_SLOT_STEP] = {l->words, sizeof(pe_metal_step) + sizeof l->best},
  };
  for (const msl_argument *a = m.kernel->arguments; a->index >= 0; a++)
    m.buffer[a->index].at = slot[a->index].at, m.buffer[a->index].bytes = slot[a->index].bytes;
  if (msl_run(&m)) printf("    %s\n", msl_fault_text());
}

static void run(lines *l, int order) {
  pe_metal_step head = {.outputs = OUTPUTS, .best = sizeof(pe_metal_step) / 4};
  memcpy(l->words, &head, sizeof head);
  memcpy(l->words + head.best, l->best, sizeof l->best);
  memset(l->list, 0xee, (size_t)OUTPUTS * PE_SHORTLIST_WORDS * 4);
  memset(l->peaks, 0xff, (size_t)(OUTPUTS * l->stretches) * 4);
  msl_schedule(order);
  launch(l, "shortlist_peaks", (uint32_t)(l->stretches + 7) / 8, OUTPUTS);
  launch(l, "shortlist", OUTPUTS, 1);
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
  const float from = border(x, l->n, l->best[output]);
  int32_t count = 0;
  for (int32_t i = 0; i < l->n; i++) {
    if (!(x[i] >= from)) continue;
    if (count < PE_SHORTLIST_ROOM) {
      CHECK_INT(list[1 + count], i);
      CHECK(!memcmp(&list[1 + PE_SHORTLIST_ROOM + count], &x[i], 4));
    }
    count++;
  }
  CHECK_INT(list[0], count);
  CHECK(count >= l->best[output] || l->best[output] > l->n / 2);
}

static void check_all(lines *l) {
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    run(l, order);
    for (int i = 0; i < OUTPUTS; i++)
      if (l->best[i])
        check_list(l, i);
      else /* nobody asked */
        CHECK_INT(l->list[i * PE_SHORTLIST_WORDS], (int32_t)0xeeeeeeee);
  }
}

static void test_sizes(void) {
  static const int32_t sizes[] = {1, 31, 256, 257, 1000, 9000, 16384};
  for (int i = 0; i < 7; i++)
    for (int32_t best = 1; best <= 64 && best <= sizes[i]; best = best * 2 + 1) {
      lines l = lines_of(sizes[i]);
      l.best[0] = best, l.best[2] = 1;
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
  l.best[0] = 3, l.best[1] = 4, l.best[2] = 50;
  check_all(&l);
  lines_free(&l);
}

/* What the host must look at itself: NaN, infinity, nothing finite, too many. */
static void test_refused(void) {
  lines l = lines_of(4000);
  l.x[3999] = NAN, l.x[l.step] = INFINITY;
  for (int32_t i = 0; i < l.n; i++) l.x[2 * l.step + i] = -INFINITY;
  for (int i = 0; i < OUTPUTS; i++) l.best[i] = 1 + i;
  run(&l, 0);
  for (int i = 0; i < OUTPUTS; i++) CHECK_INT(l.list[i * PE_SHORTLIST_WORDS], -1);
  for (int32_t i = 0; i < OUTPUTS * l.step; i++) l.x[i] = 1;
  check_all(&l); /* all are equal: 4000, of which there is room for some */
  lines_free(&l);
}

static const check_test tests[] = {
    {"sizes", test_sizes}, {"ties", test_ties}, {"refused", test_refused}};

int main(int argc, char **argv) {
  return metal_main("metal shortlist", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
