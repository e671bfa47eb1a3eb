// The three inner loops of attention on a block of keys: scores, softmax, weighted sum of values.
//
// Every loop adds up one (row, key) or one (row, dimension) in an order of its own, whatever rows
// it is computed beside, so that results do not depend on how rows are grouped.
#pragma once

#include "cpu/elementwise.h"

constexpr int64_t ATT_KEYS = 64;  // keys a block; a multiple of every VL

// Rows that share the reading of keys and values, and the sums kept in registers for NQ of them
// with some keys: a multiple of VL.
#if defined(GF_NEON)  // 32 registers of four floats
constexpr int kAttRows = 4;
constexpr int att_sums(int nq) { return nq > 1 ? 16 : 8; }
#else
constexpr int kAttRows = VL >= 16 ? 4 : VL >= 8 ? 2 : 1;
constexpr int att_sums(int) { return VL; }
#endif
constexpr int kAttKeys = att_sums(1);  // the most keys at once

// n 16-bit floats to floats, zero up to a whole vector.
template <typename Load>
inline void att_stage_half(const char* from, float* to, int64_t n, Load&& load) {
  const auto* const h = reinterpret_cast<const uint16_t*>(from);
  const int64_t whole = n / VL * VL;
  for (int64_t i = 0; i < whole; i += VL) vf_store(to + i, load(h + i));
  if (whole < n) {
    uint16_t tail[VL] = {};
    std::memcpy(tail, h + whole, (n - whole) * sizeof(uint16_t));
    vf_store(to + whole, load(tail));
  }
}

// One row of k or v as floats, zero up to a whole vector.
inline void att_stage_row(int32_t type, const char* from, float* to, int64_t n) {
  if (type == GF_F16) {
    att_stage_half(from, to, n, [](const uint16_t* h) { return vf_load_f16(h); });
  } else if (type == GF_BF16) {
    att_stage_half(from, to, n, [](const uint16_t* h) { return vf_load_bf16(h); });
  } else if (type == GF_Q8_0) {
    const auto* const b = reinterpret_cast<const block_q8_0*>(from);
    for (int64_t i = 0; i < n; i += block_q8_0::QK) {
      const vf d = vf_set(gf_f16_to_f32(b[i / block_q8_0::QK].d));
      const gf_i8* const q = b[i / block_q8_0::QK].qs;
      for (int j = 0; j < block_q8_0::QK; j += VL) vf_store(to + i + j, d * vf_load_i8(q + j));
    }
  } else {
    const auto* const x = reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < n; i += VL) vf_store(to + i, vf_load_to(x + i, n - i));
  }
}

// s[row][j] = q[row] . k[j] for NQ rows and the keys that hold [begin, end), by groups of at most
// kAttKeys. q rows and k rows are dp apart, s rows ATT_KEYS.
template <int NQ>
inline void att_scores(const float* q, const float* k, float* s, int64_t dp, int64_t begin,
                       int64_t end) {
  constexpr int N = att_sums(NQ), NK = N / NQ;
  for (int64_t j = begin / NK * NK; j < end; j += NK) {
    vf acc[N];
    for (int i = 0; i < N; ++i) acc[i] = vf_zero();
    for (int64_t d = 0; d < dp; d += VL) {
      vf qv[NQ];
      for (int a = 0; a < NQ; ++a) qv[a] = vf_load(q + a * dp + d);
      for (int b = 0; b < NK; ++b) {
        const vf kv = vf_load(k + (j + b) * dp + d);
        for (int a = 0; a < NQ; ++a) acc[a * NK + b] = vf_fma(qv[a], kv, acc[a * NK + b]);
      }
    }
    float lane[N];
    for (int i = 0; i < N; i += VL) vf_store(lane + i, vf_sum_each(acc + i));
    for (int a = 0; a < NQ; ++a) {
      std::memcpy(s + a * ATT_KEYS + j, lane + a * NK, NK * sizeof(float));
    }
  }
}

// Running softmax of a row: greatest score and sum of exponentials so far.
struct att_state {
  float max, sum;
};

// Turns scores [begin, end) of a block into weights exp(s - max), the others into 0, and returns
// what the row's earlier sums must be multiplied with.
inline float att_soft_max(float* s, att_state* state, int64_t begin, int64_t end) {
  const float lowest = -__builtin_huge_valf();
  for (int64_t j = 0; j < begin; ++j) s[j] = lowest;
  for (int64_t j = end; j < ATT_KEYS; ++j) s[j] = lowest;
  vf top = vf_load(s);
  for (int64_t j = VL; j < ATT_KEYS; j += VL) top = vf_max(top, vf_load(s + j));
  const float block_max = vf_greatest(top);
  const float max = block_max > state->max ? block_max : state->max;
  const vf base = vf_set(max == lowest ? 0.0f : max);
  vf sum = vf_zero();
  for (int64_t j = 0; j < ATT_KEYS; j += VL) {
    const vf p = vf_exp(vf_load(s + j) - base);
    vf_store(s + j, p);
    sum = sum + p;
  }
  float shrink = 1.0f;
  if (max != state->max) {
    float lane[VL];
    vf_store(lane, vf_exp(vf_set(state->max) - base));
    shrink = lane[0];
  }
  *state = {max, state->sum * shrink + vf_sum(sum)};
  return shrink;
}

// o[row] += sum over j in [begin, end) of p[row][j] v[j], for NR rows and NV vectors of the head.
template <int NR, int NV>
inline void att_values_part(const float* p, const float* v, float* o, int64_t dp, int64_t begin,
                            int64_t end) {
  vf acc[NR][NV];
  for (int r = 0; r < NR; ++r) {
    for (int i = 0; i < NV; ++i) acc[r][i] = vf_load(o + r * dp + i * VL);
  }
  for (int64_t j = begin; j < end; ++j) {
    vf value[NV];
    for (int i = 0; i < NV; ++i) value[i] = vf_load(v + j * dp + i * VL);
    for (int r = 0; r < NR; ++r) {
      const vf w = vf_set(p[r * ATT_KEYS + j]);
      for (int i = 0; i < NV; ++i) acc[r][i] = vf_fma(w, value[i], acc[r][i]);
    }
  }
  for (int r = 0; r < NR; ++r) {
    for (int i = 0; i < NV; ++i) vf_store(o + r * dp + i * VL, acc[r][i]);
  }
}

template <int NR>
inline void att_values(const float* p, const float* v, float* o, int64_t dp, int64_t begin,
                       int64_t end) {
  constexpr int NV = NR == 1 && VL == 4 ? 8 : 4;  // enough independent sums
  int64_t i = 0;
  for (; i + NV * VL <= dp; i += NV * VL) {
    att_values_part<NR, NV>(p, v + i, o + i, dp, begin, end);
  }
  for (; i < dp; i += VL) att_values_part<NR, 1>(p, v + i, o + i, dp, begin, end);
}
