/* tensor_stats.c - statistics and histograms; see tensor.h. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>
#include <string.h>

/* Moves the finite elements of a block to its front and counts the others. */
static int keep_finite(pe_tensor_block *b, int n, pe_tensor_summary *s) {
  int kept = 0;
  for (int k = 0; k < n; k++) {
    double x = b->d[k];
    s->zero += x == 0;
    if (isfinite(x))
      b->d[kept++] = x;
    else if (x != x)
      s->nan++;
    else
      s->inf++;
  }
  return kept;
}

void pe_tensor_stats(const pe_tensor *t, pe_tensor_summary *out) {
  pe_tensor_summary s = {.count = pe_tensor_size(t), .min = NAN, .max = NAN, .mean = 0};
  /* Sum of squared distances from the mean, merged block by block, and elements so far. */
  double squares = 0, seen = 0;
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, t, t->rank, t->shape);
  for (int64_t done = 0; done < s.count; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(s.count - done);
    pe_tensor_reader_next(&r, &b, PE_TENSOR_F64, n);
    n = keep_finite(&b, n, &s);
    if (!n) continue;
    double mean = 0, m2 = 0;
    for (int k = 0; k < n; k++) {
      double x = b.d[k];
      mean += x / n; /* divide first: a sum of very large doubles would overflow */
      if (!(x >= s.min)) s.min = x;
      if (!(x <= s.max)) s.max = x;
    }
    for (int k = 0; k < n; k++) m2 += (b.d[k] - mean) * (b.d[k] - mean);
    double d = mean - s.mean, all = seen + n;
    s.mean += d * (n / all);
    squares += m2 + d * d * (seen * n / all);
    seen = all;
  }
  s.std = seen > 0 ? sqrt(squares / seen) : NAN;
  if (seen == 0) s.mean = NAN;
  *out = s;
}

pe_status pe_tensor_histogram(const pe_tensor *t, double low, double high, int64_t *counts,
                              int bins, pe_error *err) {
  if (bins < 1) return pe_fail(err, PE_EARG, "histogram: bins must be at least 1, got %d", bins);
  if (!isfinite(low) || !isfinite(high) || low > high)
    return pe_fail(err, PE_EARG,
                   "histogram: low must not exceed high and both must be finite, got %g and %g",
                   low, high);
  memset(counts, 0, (size_t)bins * sizeof *counts);
  double half = high / 2 - low / 2; /* half: the whole width may overflow */
  int64_t size = pe_tensor_size(t);
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, t, t->rank, t->shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&r, &b, PE_TENSOR_F64, n);
    for (int k = 0; k < n; k++) {
      double x = b.d[k];
      if (!(x >= low && x <= high)) continue;
      int bin = half > 0 ? (int)((x / 2 - low / 2) / half * bins) : 0;
      counts[bin < bins ? bin : bins - 1]++;
    }
  }
  return PE_OK;
}
