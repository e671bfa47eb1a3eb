// Dot products of R rows with C columns: out[r * C + c]. Each has accumulators of its own.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"
#include "cpu/sparse_decode.h"
#include "cpu/sparse_types.h"
#include "quants/traits.h"

namespace gf {

// -- rows of plain floats

struct ElemF32 {
  using Elem = float;
  static GF_INLINE vf load(const float* p) { return vf_load(p); }
};
struct ElemF16 {
  using Elem = gf_u16;
  static GF_INLINE vf load(const gf_u16* p) { return vf_load_f16(p); }
};
struct ElemBF16 {
  using Elem = gf_u16;
  static GF_INLINE vf load(const gf_u16* p) { return vf_load_bf16(p); }
};

// The first n < VL elements, zeros after them.
template <class T>
GF_INLINE vf load_some(const typename T::Elem* p, int64_t n) {
  typename T::Elem padded[VL] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return T::load(padded);
}

template <class T>
struct DotFloats {
  template <int R, int C>
  static GF_INLINE void tile(const char* const* rows, const RowsAhead& ahead, const void* const* x,
                             int64_t k, float* out) {
    using Elem = typename T::Elem;
    constexpr int64_t kStep = 2 * VL;
    const Elem* w[R];
    const float* xc[C];
    vf acc[R][C][2];
    for (int c = 0; c < C; ++c) xc[c] = static_cast<const float*>(x[c]);
    for (int r = 0; r < R; ++r) {
      w[r] = reinterpret_cast<const Elem*>(rows[r]);
      for (auto& a : acc[r]) a[0] = a[1] = vf_zero();
    }
    int64_t i = 0;
    for (; i + kStep <= k; i += kStep) {
      ahead.bring(i * sizeof(Elem), (i + kStep) * sizeof(Elem));
      static_for<R>([&](auto r) GF_LAMBDA_INLINE {
        const vf w0 = T::load(w[r] + i), w1 = T::load(w[r] + i + VL);
        static_for<C>([&](auto c) GF_LAMBDA_INLINE {
          acc[r][c][0] = vf_fma(w0, vf_load(xc[c] + i), acc[r][c][0]);
          acc[r][c][1] = vf_fma(w1, vf_load(xc[c] + i + VL), acc[r][c][1]);
        });
      });
    }
    for (; i < k; i += VL) {
      const int64_t left = k - i;
      for (int r = 0; r < R; ++r) {
        const vf w0 = left >= VL ? T::load(w[r] + i) : load_some<T>(w[r] + i, left);
        for (int c = 0; c < C; ++c) {
          acc[r][c][0] = vf_fma(w0, vf_load_to(xc[c] + i, left), acc[r][c][0]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) out[r * C + c] = vf_sum(acc[r][c][0] + acc[r][c][1]);
    }
  }
};

// -- rows of any block type, through floats

template <class Block>
struct DotBlocks {
  template <int R, int C>
  static GF_INLINE void tile(const char* const* rows, const RowsAhead& ahead, const void* const* x,
                             int64_t k, float* out) {
    float w[Block::QK];
    vf acc[R][C][2];
    for (auto& row : acc) {
      for (auto& a : row) a[0] = a[1] = vf_zero();
    }
    for (int64_t ib = 0; ib < k / Block::QK; ++ib) {
      ahead.bring(ib * sizeof(Block), (ib + 1) * sizeof(Block));
      for (int r = 0; r < R; ++r) {
        dequantize_block(reinterpret_cast<const Block*>(rows[r]) + ib, w);
        for (int c = 0; c < C; ++c) {
          const float* xc = static_cast<const float*>(x[c]) + ib * Block::QK;
          for (int i = 0; i < Block::QK; i += 2 * VL) {
            acc[r][c][0] = vf_fma(vf_load(w + i), vf_load(xc + i), acc[r][c][0]);
            acc[r][c][1] = vf_fma(vf_load(w + i + VL), vf_load(xc + i + VL), acc[r][c][1]);
          }
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) out[r * C + c] = vf_sum(acc[r][c][0] + acc[r][c][1]);
    }
  }
};

#if defined(__AVX2__)
// -- rows of the tuned block types: integer products of 32 elements, scaled and added up as floats

// start + the sums of four products each, of unsigned or (kSigned) signed bytes with signed ones.
template <bool kSigned>
GF_INLINE __m256i dot_bytes(__m256i start, __m256i w, __m256i q) {
  if constexpr (kSigned) {
    q = _mm256_sign_epi8(q, w);
    w = _mm256_abs_epi8(w);
  }
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(start, w, q);
#else
  // Sums of two fit 16 bits: no weight is above 128, no q above 127.
  const __m256i pairs = _mm256_maddubs_epi16(w, q);
  return _mm256_add_epi32(start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// One column as dot reads it.
struct ActColumn {
  ActColumn() = default;
  ActColumn(const void* acts, const SparseActs& at)
      : d(reinterpret_cast<const float*>(acts)),
        sum(reinterpret_cast<const float*>(static_cast<const char*>(acts) + at.sum())),
        q(static_cast<const char*>(acts) + at.q()),
        start(static_cast<const char*>(acts) + at.start()) {}

  // The integer products of block i with 32 weights.
  template <class T>
  GF_INLINE __m256 products(__m256i w, int64_t i) const {
    const __m256i from = T::kBias ? load_bytes32(start + 32 * i) : _mm256_setzero_si256();
    return _mm256_cvtepi32_ps(dot_bytes<T::kSigned>(from, w, load_bytes32(q + 32 * i)));
  }

  const float* d;
  const float* sum;
  const char* q;
  const char* start;
};

// The eight products of a super-block's scales and a column's, broadcast one by one; and what the
// minimums take off.
template <int s>
GF_INLINE __m256 scale_of(const __m256 (&p)[1]) {
  return _mm256_permutevar8x32_ps(p[0], _mm256_set1_epi32(s));
}
// The same for scales of 16 elements, sixteen of them: four lanes each.
template <int s>
GF_INLINE __m256 scale_of(const __m256 (&p)[2]) {
  constexpr int a = s % 4 * 2;
  return _mm256_permutevar8x32_ps(p[s / 4],
                                  _mm256_setr_epi32(a, a, a, a, a + 1, a + 1, a + 1, a + 1));
}
GF_INLINE void scale_products(const DecodeQ4_K::Scales& s, const float* d, __m256 (&p)[1]) {
  p[0] = _mm256_mul_ps(_mm256_loadu_ps(s.scale), _mm256_loadu_ps(d));
}
GF_INLINE void scale_products(const DecodeQ6_K::Scales& s, const float* d, __m256 (&p)[2]) {
  const __m256 d8 = _mm256_loadu_ps(d);
  const __m256 low = _mm256_permutevar8x32_ps(d8, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  const __m256 high = _mm256_permutevar8x32_ps(d8, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
  p[0] = _mm256_mul_ps(_mm256_loadu_ps(s.scale), low);
  p[1] = _mm256_mul_ps(_mm256_loadu_ps(s.scale + 8), high);
}

template <class T>
struct DotDecoded {
  using Block = typename T::Block;

  template <int R, int C>
  static GF_INLINE void tile(const char* const* rows, const RowsAhead& ahead, const void* const* x,
                             int64_t k, float* out) {
    const int64_t n_blocks = k / Block::QK;
    ActColumn xc[C];
    __m256 acc[R][C][2], mins[R][C];
    for (int c = 0; c < C; ++c) xc[c] = ActColumn(x[c], SparseActs(k));
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) acc[r][c][0] = acc[r][c][1] = mins[r][c] = _mm256_setzero_ps();
    }
    const auto block = [&](int r, int64_t ib) GF_LAMBDA_INLINE {
      return reinterpret_cast<const Block*>(rows[r]) + ib;
    };
    if constexpr (Block::QK == 32) {
      const auto add = [&](int64_t ib, auto chain) GF_LAMBDA_INLINE {
        static_for<R>([&](auto r) GF_LAMBDA_INLINE {
          const __m256i w = T::bytes(block(r, ib), 0);
          const float d = T::scales(block(r, ib)).d;
          static_for<C>([&](auto c) GF_LAMBDA_INLINE {
            const __m256 scale = _mm256_set1_ps(d * xc[c].d[ib]);
            __m256& a = acc[r][c][chain];
            a = _mm256_fmadd_ps(xc[c].template products<T>(w, ib), scale, a);
          });
        });
      };
      int64_t ib = 0;
      for (; ib + 2 <= n_blocks; ib += 2) {
        ahead.bring(ib * sizeof(Block), (ib + 2) * sizeof(Block));
        add(ib, std::integral_constant<int, 0>{});
        add(ib + 1, std::integral_constant<int, 1>{});
      }
      if (ib < n_blocks) add(ib, std::integral_constant<int, 0>{});
    } else {
      for (int64_t ib = 0; ib < n_blocks; ++ib) {
        ahead.bring(ib * sizeof(Block), (ib + 1) * sizeof(Block));
        for (int r = 0; r < R; ++r) add_super_block<C>(block(r, ib), ib, xc, acc[r], mins[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        const __m256 sum = _mm256_sub_ps(_mm256_add_ps(acc[r][c][0], acc[r][c][1]), mins[r][c]);
        __m128 v = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
        v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        out[r * C + c] = _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
      }
    }
  }

 private:
  template <int C>
  static GF_INLINE void add_super_block(const Block* b, int64_t ib, const ActColumn* xc,
                                        __m256 (*acc)[2], __m256* mins) {
    const auto s = T::scales(b);
    __m256 p[C][sizeof(s.scale) / 32];
    for (int c = 0; c < C; ++c) {
      scale_products(s, xc[c].d + 8 * ib, p[c]);
      if constexpr (sizeof(s.scale) != sizeof s) {
        mins[c] =
            _mm256_fmadd_ps(_mm256_loadu_ps(s.min), _mm256_loadu_ps(xc[c].sum + 8 * ib), mins[c]);
      }
    }
    static_for<8>([&](auto sub) GF_LAMBDA_INLINE {
      const __m256i w = T::bytes(b, sub);
      for (int c = 0; c < C; ++c) {
        __m256& a = acc[c][sub % 2];
        const __m256 products = xc[c].template products<T>(w, 8 * ib + sub);
        a = _mm256_fmadd_ps(products, scale_of<sub>(p[c]), a);
      }
    });
  }
};
#endif

}  // namespace gf
