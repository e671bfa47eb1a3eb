// What one thread of this machine can do at best with the instructions this library is built for:
// the roofs that a profile's ops are held against. Python runs these on every thread at once.
#include <stdint.h>

#include "cpu/abi.h"
#include "cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__)
#include "cpu/matrix_unit.h"
#endif

namespace {

// Independent accumulators: latency times throughput, and registers left.
#if defined(GF_NEON)
constexpr int kChains = 16;
#else
constexpr int kChains = 12;
#endif

#if defined(__AVX512VNNI__)
typedef __m512i vi;
constexpr int kBytes = 64;
inline vi dot_step(vi acc, vi w, vi a) { return _mm512_dpbusd_epi32(acc, w, a); }
inline vi splat(int x) { return _mm512_set1_epi32(x); }
#elif defined(__AVX2__)
typedef __m256i vi;
constexpr int kBytes = 32;
inline vi dot_step(vi acc, vi w, vi a) {
  const vi pairs = _mm256_maddubs_epi16(w, a);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline vi splat(int x) { return _mm256_set1_epi32(x); }
#elif defined(__SSE2__)
typedef __m128i vi;
constexpr int kBytes = 8;  // bytes are widened first: eight products an instruction
inline vi dot_step(vi acc, vi w, vi a) { return _mm_add_epi32(acc, _mm_madd_epi16(w, a)); }
inline vi splat(int x) { return _mm_set1_epi32(x); }
#elif defined(GF_NEON)
struct vi {
  int32x4_t v;
};
inline vi splat(int x) { return {vdupq_n_s32(x)}; }
inline int8x16_t bytes_of(vi x) { return vreinterpretq_s8_s32(x.v); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kBytes = 32;
inline vi dot_step(vi acc, vi w, vi a) { return {vmmlaq_s32(acc.v, bytes_of(w), bytes_of(a))}; }
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kBytes = 16;
inline vi dot_step(vi acc, vi w, vi a) { return {vdotq_s32(acc.v, bytes_of(w), bytes_of(a))}; }
#else
constexpr int kBytes = 16;
inline vi dot_step(vi acc, vi w, vi a) {
  const int16x8_t low = vmull_s8(vget_low_s8(bytes_of(w)), vget_low_s8(bytes_of(a)));
  return {vpadalq_s16(acc.v, vmlal_high_s8(low, bytes_of(w), bytes_of(a)))};
}
#endif
#else
struct vi {
  int32_t lane[4];
};
constexpr int kBytes = 4;
inline vi dot_step(vi acc, vi w, vi a) {
  for (int i = 0; i < 4; ++i) acc.lane[i] += w.lane[i] * a.lane[i];
  return acc;
}
inline vi splat(int x) { return {{x, x, x, x}}; }
#endif

// Keeps the compiler from folding a loop whose result it can see through.
template <typename T>
inline void opaque(T& x) {
#if defined(__GNUC__)
  __asm__ volatile("" : "+m"(x));
#else
  (void)x;
#endif
}

}  // namespace

// `turns` rounds of int8 dot products in registers. Returns the operations done, two a
// multiply-add.
#if defined(__AMX_INT8__)
GF_EXPORT int64_t gf_peak_int8(int64_t turns) {
  const gf::MatrixUnit unit;
  gf::MatrixUnit::halves(16, 16);  // as many bytes
  for (int64_t t = 0; t < turns; ++t) {
    _tile_dpbssd(0, 1, 2);
    _tile_dpbssd(5, 3, 4);
  }
  return turns * 2 * (16 * 16 * 64) * 2;
}
#else
GF_EXPORT int64_t gf_peak_int8(int64_t turns) {
  int seed = 0x01020304;
  opaque(seed);
  const vi w = splat(seed), a = splat(seed + 1);
  vi acc[kChains];
  for (vi& x : acc) x = splat(0);
  for (int64_t t = 0; t < turns; ++t) {
    for (vi& x : acc) x = dot_step(x, w, a);
  }
  for (vi& x : acc) opaque(x);
  return turns * kChains * kBytes * 2;
}
#endif

// The same for bf16, where there are instructions for it.
#if defined(__AMX_BF16__)
GF_EXPORT int64_t gf_peak_bf16(int64_t turns) {
  const gf::MatrixUnit unit;
  gf::MatrixUnit::halves(16, 16);
  for (int64_t t = 0; t < turns; ++t) {
    _tile_dpbf16ps(0, 1, 2);
    _tile_dpbf16ps(5, 3, 4);
  }
  return turns * 2 * (16 * 16 * 32) * 2;
}
#elif defined(__AVX512BF16__)
GF_EXPORT int64_t gf_peak_bf16(int64_t turns) {
  int seed = 0x3f803f80;
  opaque(seed);
  const auto w = reinterpret_cast<__m512bh>(splat(seed));
  __m512 acc[kChains];
  for (auto& x : acc) x = _mm512_setzero_ps();
  for (int64_t t = 0; t < turns; ++t) {
    for (auto& x : acc) x = _mm512_dpbf16_ps(x, w, w);
  }
  for (auto& x : acc) opaque(x);
  return turns * kChains * 32 * 2;
}
#endif

// The same for float32 multiply-adds.
GF_EXPORT int64_t gf_peak_f32(int64_t turns) {
  float seed = 0.9999f;
  opaque(seed);
  const vf w = vf_set(seed), a = vf_set(1.0f - seed);
  vf acc[kChains];
  for (vf& x : acc) x = vf_set(seed);
  for (int64_t t = 0; t < turns; ++t) {
    for (vf& x : acc) x = vf_fma(x, w, a);
  }
  for (vf& x : acc) opaque(x);
  return turns * kChains * VL * 2;
}

// Reads n floats once; returns their sum, so that the reads cannot be dropped.
GF_EXPORT float gf_peak_read(const float* x, int64_t n) { return vf_row_sum(x, n); }
