/* tensor_random.c - random tensors: element i is a hash of i and the seed (splitmix64); see
 * tensor.h. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* Random bits number i of a stream. */
static uint64_t draw(uint64_t stream, uint64_t i) {
  return mix(stream + (i + 1) * 0x9e3779b97f4a7c15u);
}

static double unit(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; } /* [0, 1) */

typedef struct recipe {
  double a, b; /* low and high, or mean and standard deviation */
  uint64_t stream;
  bool normal;
} recipe;

static double element(const recipe *r, uint64_t i) {
  if (!r->normal) return r->a + (r->b - r->a) * unit(draw(r->stream, i));
  double u = unit(draw(r->stream, 2 * i)),
         v = unit(draw(r->stream, 2 * i + 1)); /* Box-Muller; only the first of the pair is used */
  return r->a + r->b * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

static pe_status make(const char *what, pe_dtype dtype, int rank, const int64_t *shape, recipe r,
                      pe_tensor *out, pe_error *err) {
  pe_tensor t;
  if (pe_dtype_is_f8(dtype))
    return pe_fail(err, PE_EUNSUPPORTED, "%s: %s has no arithmetic", what, pe_dtype_name(dtype));
  pe_status rc = pe_tensor_new(dtype, rank, shape, &t, err);
  if (rc) return rc;
  int64_t size = pe_tensor_size(&t);
  bool whole = !pe_dtype_is_float(dtype);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(size - done);
    for (int k = 0; k < n; k++) {
      double x = element(&r, (uint64_t)(done + k));
      b.d[k] = whole ? floor(x) : x;
    }
    pe_tensor_block_convert(&b, PE_TENSOR_F64, pe_tensor_kind_of(dtype), n);
    pe_tensor_block_saturate(&b, dtype, n);
    pe_tensor_block_store(&b, pe_tensor_at(&t, done), dtype, 1, n);
  }
  *out = t;
  return PE_OK;
}

pe_status pe_tensor_uniform(pe_dtype dtype, int rank, const int64_t *shape, double low, double high,
                            uint64_t seed, pe_tensor *out, pe_error *err) {
  if (!(low <= high) || isinf(high - low))
    return pe_fail(err, PE_EARG,
                   "uniform: low must not exceed high and both must be finite, got %g and %g", low,
                   high);
  return make("uniform", dtype, rank, shape, (recipe){low, high, mix(seed), false}, out, err);
}

pe_status pe_tensor_normal(pe_dtype dtype, int rank, const int64_t *shape, double mean, double std,
                           uint64_t seed, pe_tensor *out, pe_error *err) {
  if (!isfinite(mean) || !isfinite(std) || std < 0)
    return pe_fail(err, PE_EARG,
                   "normal: mean and std must be finite and std not negative, got %g and %g", mean,
                   std);
  return make("normal", dtype, rank, shape, (recipe){mean, std, mix(seed), true}, out, err);
}
