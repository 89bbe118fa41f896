/* image.c - how fast pictures are resized, hashed and cut into patches: one thread, MB of input
 * bytes per second, the best of several runs in CPU time. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/image/patches.h"
#include "runtime/image/resize.h"

enum { RUNS = 5 };

static double cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool make(int32_t width, int32_t height, pe_image *out) {
  pe_error err;
  if (pe_image_new(width, height, out, &err)) return false;
  for (int64_t i = 0; i < (int64_t)width * height * 3; i++) out->rgb[i] = (uint8_t)(i * 7 >> 3);
  return true;
}

typedef void work(const pe_image *in, const pe_image *out, int filter);

static void resize(const pe_image *in, const pe_image *out, int filter) {
  pe_error err;
  pe_resize(in, (pe_filter)filter, out, &err);
}

static void hash(const pe_image *in, const pe_image *out, int filter) {
  (void)filter;
  pe_image_hash(in, out->rgb);
}

static float rows[1024 * 768 * 3];

static void patches(const pe_image *in, const pe_image *out, int filter) {
  const pe_patch_layout layout = {.patch_width = 16,
                                  .patch_height = 16,
                                  .merge = 2,
                                  .frames = 1,
                                  .scale = 1.0 / 255,
                                  .mean = {.5f, .5f, .5f},
                                  .std = {.5f, .5f, .5f}};
  pe_error err;
  (void)out, (void)filter;
  pe_patches(&layout, in, 1, rows, &err);
}

static void measure(const char *name, work *fn, const pe_image *in, const pe_image *out,
                    int filter) {
  double best = 1e9;
  for (int i = 0; i < RUNS; i++) {
    double start = cpu_s();
    fn(in, out, filter);
    double took = cpu_s() - start;
    if (took < best) best = took;
  }
  double bytes = (double)in->width * in->height * 3;
  printf("%-28s %5d x %-5d %5d x %-5d %8.2f %8.0f\n", name, in->width, in->height, out->width,
         out->height, best * 1e3, bytes / best / 1e6);
}

int main(void) {
  static const int32_t sizes[][4] = {
      {4000, 3000, 1024, 768}, {1920, 1080, 1280, 704}, {640, 480, 1024, 768}};
  printf("%-28s %13s %13s %8s %8s\n", "pictures", "from", "to", "ms", "MB/s");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    pe_image in, out;
    if (!make(sizes[i][0], sizes[i][1], &in) || !make(sizes[i][2], sizes[i][3], &out)) return 1;
    for (int f = 0; f < PE_FILTERS; f++) {
      char name[40];
      snprintf(name, sizeof name, "resize, %s", pe_filter_name((pe_filter)f));
      measure(name, resize, &in, &out, f);
    }
    if (i == 0) measure("SHA-256", hash, &in, &out, 0);
    if (i == 0) measure("patches", patches, &out, &out, 0);
    pe_image_free(&in), pe_image_free(&out);
  }
  return 0;
}
