// The inner kernels of quantized mul_mat on 64-bit ARM.
//
// A register holds four rows, a part of the sixteen that lie interleaved. One column takes the
// parts of every 32 elements in turn, so that weights are read in order. A tile takes 256 elements
// of a part for all columns, whose sums then fit in the registers, and the next part after that.
// Each sum is added up in the same order in both.
#pragma once

#include "cpu/mul_mat_acts.h"
#include "cpu/mul_mat_load.h"

namespace gf {

// Keeps the compiler from loading the activations of several columns first, which would not fit in
// registers.
GF_INLINE void keep_loads_here() { __asm__ volatile("" ::: "memory"); }

// acc + the rows' 32 products with one column, scaled: d is the column's step, sums its sums.
// centred: the weights' bias is already taken off.
template <class L, bool centred, class Scales>
GF_INLINE VecF add_column(VecF acc, const VecW (&q)[8], const Scales& s, const int8_t* a, float d,
                          const int32_t (&sums)[2]) {
  constexpr int n = 8 / L::kHalves;
  const auto dot = [&](auto h) GF_LAMBDA_INLINE {
    return vcvtq_f32_s32(dot_rows<L, h * n, n>(q, a, L::kBias && !centred ? sums[h] : 0));
  };
  VecF v = mul_f(dot(std::integral_constant<int, 0>{}), s.scale[0]);
  if constexpr (L::kHalves == 2) {
    v = fma_f(dot(std::integral_constant<int, 1>{}), s.scale[1], v);
  }
  acc = vfmaq_n_f32(acc, v, d);
  if constexpr (L::kMins) {
    static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
      float sum;
      std::memcpy(&sum, &sums[h], 4);
      acc = vfmaq_n_f32(acc, s.min[h], sum);
    });
  }
  return acc;
}

template <class L>
struct RowScales {
  VecF scale[L::kHalves], min[L::kHalves];
};

template <class L>
void packed_column(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out) {
  VecF acc[kParts];
  for (VecF& x : acc) x = zero_f();
  for (int64_t ib = 0; ib < n_blocks; ++ib, w += kRows * L::kBlockBytes) {
    const L block(w);
    for (int sub = 0; sub < L::kSubBlocks; ++sub, a += kActBlockBytes) {
      float d;
      int32_t sums[2];
      std::memcpy(&d, a, 4);
      std::memcpy(sums, a + 4, 8);
      static_for<kParts>([&](auto part) GF_LAMBDA_INLINE {
        VecW q[8];
        L::weights(w, sub, part, q);
        RowScales<L> s;
        block.rows(part).scales(sub, s.scale, s.min);
        acc[part] =
            add_column<L, false>(acc[part], q, s, reinterpret_cast<const int8_t*>(a + 12), d, sums);
      });
    }
  }
  for (int part = 0; part < kParts; ++part) store_f(out + kVecRows * part, acc[part]);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Two columns by smmla. The sums of four rows are two registers, of two rows each: row by row, each
// with the first column and the second.
struct Pair {
  VecF v[2];

  static GF_INLINE Pair twice(VecF x) { return {{vzip1q_f32(x, x), vzip2q_f32(x, x)}}; }
  GF_INLINE VecF column(int c) const {
    return c == 0 ? vuzp1q_f32(v[0], v[1]) : vuzp2q_f32(v[0], v[1]);
  }
};

// Each row's 4 bytes beside its next 4: q[2i], q[2i + 1] become rows 0 and 1, rows 2 and 3.
GF_INLINE void pair_rows(VecW (&q)[8]) {
  for (int i = 0; i < 8; i += 2) {
    const uint32x4_t x = vreinterpretq_u32_u8(q[i]), y = vreinterpretq_u32_u8(q[i + 1]);
    q[i] = vreinterpretq_u8_u32(vzip1q_u32(x, y));
    q[i + 1] = vreinterpretq_u8_u32(vzip2q_u32(x, y));
  }
}

// Two values, twice.
GF_INLINE float32x4_t two_of(const void* p) {
  return vreinterpretq_f32_f64(vld1q_dup_f64(static_cast<const double*>(p)));
}

template <class L>
struct PairScales {
  Pair scale[L::kHalves], min[L::kHalves];
};

// add_column for columns c and c + 1 of T; d and sums are those of the tile, from c on.
template <class L, int T, bool centred>
GF_INLINE Pair add_pair(Pair acc, const VecW (&q)[8], const PairScales<L>& s, const int8_t* a,
                        const float* d, const uint8_t* sums) {
  constexpr int n = 8 / L::kHalves;
  Pair v;
  static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
    int32x4_t dot[2];
    for (int32x4_t& x : dot) {
      x = L::kBias && !centred ? vreinterpretq_s32_f32(two_of(sums + 4 * h * T)) : vdupq_n_s32(0);
    }
    static_for<n / 2>([&](auto i) GF_LAMBDA_INLINE {
      const int8x16_t x = vld1q_s8(a + 16 * (h * n / 2 + i));
      static_for<2>([&](auto r) GF_LAMBDA_INLINE {
        dot[r] = vmmlaq_s32(dot[r], vreinterpretq_s8_u8(q[h * n + 2 * i + r]), x);
      });
    });
    for (int r = 0; r < 2; ++r) {
      const VecF x = vcvtq_f32_s32(dot[r]);
      v.v[r] = h == 0 ? mul_f(x, s.scale[0].v[r]) : fma_f(x, s.scale[h].v[r], v.v[r]);
    }
  });
  const VecF steps = two_of(d);
  for (int r = 0; r < 2; ++r) acc.v[r] = fma_f(v.v[r], steps, acc.v[r]);
  if constexpr (L::kMins) {
    static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
      const VecF sum = two_of(sums + 4 * h * T);
      for (int r = 0; r < 2; ++r) acc.v[r] = fma_f(s.min[h].v[r], sum, acc.v[r]);
    });
  }
  return acc;
}
#endif

// The sums of one part with T columns, while they are in registers.
template <class L, int T>
struct PartSums {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr int kPaired = T / 2 * 2;
  Pair pairs[T / 2 + 1];
#else
  static constexpr int kPaired = 0;
#endif
  VecF acc[T];

  GF_INLINE void load(const float* from) {
    static_for<T>([&](auto c) GF_LAMBDA_INLINE { at<c>() = load_f(from + kRows * c); });
  }
  // Sums of pairs rest in memory as they are in registers, until the last time.
  GF_INLINE void store(float* to, bool last) {
    static_for<T>([&](auto c) GF_LAMBDA_INLINE { store_f(to + kRows * c, at<c>()); });
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (!last) return;
    static_for<kPaired>(
        [&](auto c) GF_LAMBDA_INLINE { store_f(to + kRows * c, pairs[c / 2].column(c % 2)); });
#else
    (void)last;
#endif
  }

  // Taking the bias off the weights costs less than to start the sums of several columns at it.
  static constexpr bool kCentred = L::kBias != 0 && T >= 4;

  // Adds 32 elements; a: the tile's activations.
  template <class Rows>
  GF_INLINE void add(VecW (&q)[8], const Rows& rows, int sub, const uint8_t* a) {
    RowScales<L> s;
    rows.scales(sub, s.scale, s.min);
    const auto* d = reinterpret_cast<const float*>(a);
    const uint8_t* sums = a + 4 * T;
    const auto* x = reinterpret_cast<const int8_t*>(a + 12 * T);
    if constexpr (kCentred) {
      for (VecW& w : q) w = vsubq_u8(w, vdupq_n_u8(L::kBias));
    }
    static_for<T - kPaired>([&](auto i) GF_LAMBDA_INLINE {
      constexpr int c = kPaired + i;
      int32_t own[2];
      for (int h = 0; h < 2; ++h) std::memcpy(own + h, sums + 4 * (h * T + c), 4);
      keep_loads_here();
      acc[c] = add_column<L, kCentred>(acc[c], q, s, x + 32 * c, d[c], own);
    });
#if defined(__ARM_FEATURE_MATMUL_INT8)
    pair_rows(q);
    PairScales<L> both;
    static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
      both.scale[h] = Pair::twice(s.scale[h]);
      if constexpr (L::kMins) both.min[h] = Pair::twice(s.min[h]);
    });
    static_for<T / 2>([&](auto i) GF_LAMBDA_INLINE {
      keep_loads_here();
      pairs[i] = add_pair<L, T, kCentred>(pairs[i], q, both, x + 64 * i, d + 2 * i, sums + 8 * i);
    });
#endif
  }

 private:
  template <int c>
  GF_INLINE VecF& at() {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (c < kPaired) return pairs[c / 2].v[c % 2];
#endif
    return acc[c];
  }
};

template <class L, int T>
void packed_tile(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out) {
  if constexpr (T == 1) return packed_column<L>(w, a, n_blocks, out);
  constexpr int kBlocks = 8 / L::kSubBlocks;  // that make 256 elements
  std::memset(out, 0, sizeof(float) * kRows * T);
  for (int64_t ib = 0; ib < n_blocks; ib += kBlocks) {
    const int64_t left = n_blocks - ib;
    const int n = kBlocks == 1 || left >= kBlocks ? kBlocks : static_cast<int>(left);
    const L first(w);
    for (int part = 0; part < kParts; ++part) {
      PartSums<L, T> sums;
      sums.load(out + kVecRows * part);
      const uint8_t* acts = a;
      for (int i = 0; i < n; ++i) {
        const uint8_t* wi = w + kRows * L::kBlockBytes * i;
        const auto rows = [&]() GF_LAMBDA_INLINE {
          if constexpr (kBlocks == 1) return first.rows(part);
          return L(wi).rows(part);
        }();
        for (int sub = 0; sub < L::kSubBlocks; ++sub, acts += T * kActBlockBytes) {
          VecW q[8];
          L::weights(wi, sub, part, q);
          sums.add(q, rows, sub, acts);
        }
      }
      sums.store(out + kVecRows * part, left <= kBlocks);
    }
    w += kRows * L::kBlockBytes * n;
    a += T * kActBlockBytes * L::kSubBlocks * n;
  }
}

}  // namespace gf
