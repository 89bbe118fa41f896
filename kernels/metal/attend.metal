// attend.metal - the arithmetic of attention, shared by its kernels.
//
// The keys of a sequence are cut at absolute positions into parts of 128 keys, and a part into
// tiles of 32. One simdgroup takes a part for up to Q queries that share a key head:
//
//     scores   a lane for each key of the tile; the dot product runs over the values in order
//     softmax  the maximum so far, exponentials, their sum over the lanes
//     values   a lane for each 32nd value; keys in order
//
// What is left of a part (maximum, sum, mixed values) is joined to the parts before it, in order.
// So the sums of a query depend on its position alone: not on the other queries of the tile, nor on
// whether one simdgroup took all parts (one pass) or each part had its own (two passes). Keys that
// a query does not see change nothing: not even a NaN there reaches it.
#ifndef PE_METAL_ATTEND
#define PE_METAL_ATTEND

#include "kernels/metal/kv.metal"

// Where keys and values of one head are. `lines`: not in a cache but float lines of the step.
struct kv_source {
  device const uchar *keys;
  device const uchar *values;
  device const int *table;  // block ids of the segment
  size_t block_bytes, key_head, value_head;
  size_t key_line, value_line;  // bytes from line to line
  uint block, key, value, panel;
  bool lines, values_in_keys;
};

METAL_FUNC kv_row key_at(kv_source s, int t) {
  kv_row r;
  r.apart = 1u;
  if (s.lines) {
    r.at = s.keys + (size_t)t * s.key_line;
    return r;
  }
  const uint within = (uint)t % s.block;
  r.at = s.keys + (size_t)s.table[(uint)t / s.block] * s.block_bytes + s.key_head;
  if (s.panel == 0u) {
    r.at += within * kv_row_bytes(s.key);
  } else {
    r.at += 2u * (within / s.panel * s.panel * s.key + within % s.panel), r.apart = s.panel;
  }
  return r;
}

METAL_FUNC kv_row value_at(kv_source s, int t) {
  if (s.values_in_keys) return key_at(s, t);
  kv_row r;
  r.apart = 1u;
  if (s.lines) {
    r.at = s.values + (size_t)t * s.value_line;
    return r;
  }
  r.at = s.values + (size_t)s.table[(uint)t / s.block] * s.block_bytes + s.value_head +
         (uint)t % s.block * kv_row_bytes(s.value);
  return r;
}

// What is known of Q queries after some keys. mixed[q][n]: value n * 32 + lane.
template <int Q, int N>
struct attended {
  float most[Q], sum[Q], mixed[Q * N];
};

template <int Q, int N>
METAL_FUNC void attended_clear(thread attended<Q, N> &a) {
  for (int q = 0; q < Q; q++) a.most[q] = LOWEST, a.sum[q] = 0.0f;
  for (int i = 0; i < Q * N; i++) a.mixed[i] = 0.0f;
}

// The keys low .. high of each query, and those from .. to - 1 that any of them sees.
template <int Q>
struct seen_keys {
  int low[Q], high[Q], from, to;
};

// Scores of one tile: `query` is [Q][key] in threadgroup memory, already scaled.
template <int Q>
METAL_FUNC void score_tile(kv_source s, threadgroup const float *query, int t, float softcap,
                           thread float *score) {
  const kv_row row = key_at(s, t);
  for (int q = 0; q < Q; q++) score[q] = 0.0f;
  for (uint g = 0; g * KV_GROUP < s.key; g++) {
    const kv_scale scale = kv_scale_at(row, g);
    for (uint i = g * KV_GROUP; i < min(s.key, (g + 1u) * KV_GROUP); i++) {
      const float k = kv_value(row, scale, i);
      for (int q = 0; q < Q; q++) score[q] = fma(query[(uint)q * s.key + i], k, score[q]);
    }
  }
  if (softcap > 0.0f)
    for (int q = 0; q < Q; q++) score[q] = softcap * precise::tanh(score[q] / softcap);
}

// One tile of keys, which begins at `first`. weights: [Q][32] in threadgroup memory.
template <int Q, int N>
METAL_FUNC void attend_tile(kv_source s, thread const seen_keys<Q> &seen,
                            threadgroup const float *query, threadgroup float *weights, int first,
                            float softcap, uint width, uint lane, thread attended<Q, N> &a) {
  float score[Q];
  const int t = first + (int)lane;
  score_tile<Q>(s, query, max(seen.from, min(t, seen.to - 1)), softcap, score);
  simdgroup_barrier(mem_flags::mem_threadgroup);  // the weights of the last tile have been read
  for (int q = 0; q < Q; q++) {
    const bool visible = t >= seen.low[q] && t <= seen.high[q];
    const float most = max(a.most[q], lanes_max(visible ? score[q] : LOWEST));
    const float weight = visible ? precise::exp(score[q] - most) : 0.0f;
    const float kept = precise::exp(a.most[q] - most);
    a.sum[q] = fma(a.sum[q], kept, lanes_sum(weight));
    for (int n = 0; n < N; n++) a.mixed[q * N + n] *= kept;
    a.most[q] = most;
    weights[(uint)q * 32u + lane] = weight;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int j = max(0, seen.from - first); j < min(32, seen.to - first); j++) {
    const kv_row row = value_at(s, first + j);
    float v[N];
    for (uint n = 0; n < (uint)N; n++) {
      const uint i = min(n * 32u + lane, width - 1u);
      v[n] = kv_value(row, kv_scale_at(row, i / KV_GROUP), i);
    }
    for (int q = 0; q < Q; q++) {
      const float weight = weights[q * 32 + j];
      if (weight == 0.0f) continue;
      for (int n = 0; n < N; n++) a.mixed[q * N + n] = fma(weight, v[n], a.mixed[q * N + n]);
    }
  }
}

// The keys of part `part`.
template <int Q, int N>
METAL_FUNC void attend_part(kv_source s, thread const seen_keys<Q> &seen,
                            threadgroup const float *query, threadgroup float *weights, int part,
                            float softcap, uint width, uint lane, thread attended<Q, N> &a) {
  attended_clear<Q, N>(a);
  const int end = min((part + 1) * PE_ATTENTION_PART, seen.to);
  for (int first = max(part * PE_ATTENTION_PART, seen.from / 32 * 32); first < end; first += 32)
    attend_tile<Q, N>(s, seen, query, weights, first, softcap, width, lane, a);
}

// Joins b, which comes after a, to a: for one query.
METAL_FUNC float join_factors(thread float &most, float other, thread float &factor) {
  const float joined = max(most, other), kept = precise::exp(most - joined);
  factor = precise::exp(other - joined), most = joined;
  return kept;
}
METAL_FUNC float join(float a, float kept, float b, float factor) {
  return fma(a, kept, b * factor);
}

// A sink counts in the maximum and the sum; returns the factor of the mixed values.
METAL_FUNC float add_sink(thread float &most, thread float &sum, float sink) {
  float factor = 0.0f;
  const float kept = join_factors(most, sink, factor);
  sum = join(sum, kept, 1.0f, factor);
  return kept;
}

#endif
