// Which rows of a weight an op over active neurons computes, and groups of sixteen of them.
#pragma once

#include "cpu/sparse_types.h"

namespace gf {

constexpr int kGroup = 16;  // rows whose activity is one mask

// Row i of a matrix.
inline char* row_of(const gf_tensor& t, int64_t i) {
  return static_cast<char*>(t.data) + i * t.nb[1];
}
inline float* floats_of(const gf_tensor& t, int64_t i) {
  return reinterpret_cast<float*>(row_of(t, i));
}

// Row r belongs to neuron bucket[r], or r. It is active for token t unless idx[t][neuron] <
// threshold, or there[neuron] != 0: another device computes it.
struct Neurons {
  const gf_tensor* idx = nullptr;
  const int32_t* bucket = nullptr;
  const int32_t* there = nullptr;
  float threshold = 0;
  int64_t n_rows = 0, n_ff = 0;

  // `first`: the op's source that is idx; gpu_bucket and gpu_idx follow it.
  Neurons(const gf_op* op, int first, float threshold_, int64_t n_rows_, int64_t n_ff_)
      : threshold(threshold_), n_rows(n_rows_), n_ff(n_ff_) {
    if (op->src[first].data) idx = &op->src[first];
    bucket = static_cast<const int32_t*>(op->src[first + 1].data);
    there = static_cast<const int32_t*>(op->src[first + 2].data);
  }

  int64_t groups() const { return (n_rows + kGroup - 1) / kGroup; }
  int64_t neuron(int64_t r) const { return bucket ? bucket[r] : r; }

  // Bit i: row 16 * group + i is active for token t. A bucket's ids beyond n_ff are not.
  uint32_t active(int64_t t, int64_t group) const {
    const int64_t r0 = group * kGroup;
    const int64_t left = n_rows - r0;
    const float* scores = idx ? floats_of(*idx, t) : nullptr;
#if defined(__AVX512F__)
    auto mask = static_cast<__mmask16>(left < kGroup ? (1u << left) - 1 : 0xFFFFu);
    __m512i id = _mm512_setzero_si512();
    if (bucket) {
      id = _mm512_maskz_loadu_epi32(mask, bucket + r0);
      mask = _mm512_mask_cmplt_epu32_mask(mask, id, _mm512_set1_epi32(static_cast<int>(n_ff)));
    }
    if (scores) {
      const __m512 v = bucket ? _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, id, scores, 4)
                              : _mm512_maskz_loadu_ps(mask, scores + r0);
      mask = _mm512_mask_cmp_ps_mask(mask, v, _mm512_set1_ps(threshold), _CMP_NLT_UQ);
    }
    if (there) {
      const __m512i v =
          bucket ? _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, id, there, 4)
                 : _mm512_maskz_loadu_epi32(mask, there + r0);
      mask = _mm512_mask_cmpeq_epi32_mask(mask, v, _mm512_setzero_si512());
    }
    return mask;
#else
    uint32_t mask = 0;
    for (int i = 0; i < kGroup && i < left; ++i) {
      const int64_t j = neuron(r0 + i);
      const bool on =
          j >= 0 && j < n_ff && !(scores && scores[j] < threshold) && !(there && there[j] != 0);
      mask |= static_cast<uint32_t>(on) << i;
    }
    return mask;
#endif
  }
};

inline int count_bits(uint32_t mask) { return __builtin_popcount(mask); }

// f(i) for the bits of the mask, lowest first.
template <class F>
GF_INLINE void for_bits(uint32_t mask, F&& f) {
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

inline bool sparse_weight_ok(const gf_tensor& w) {
  return find_row_type(w.type) && gf_rows_dense(w) && !(w.flags & GF_PACKED);
}
inline bool sparse_floats_ok(const gf_tensor& t) { return t.type == GF_F32 && gf_rows_dense(t); }

}  // namespace gf
