// Small helpers shared by the vector headers of mul_mat.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/kernel.h"

#if defined(_MSC_VER) || defined(GF_CHECKED)
#define GF_LAMBDA_INLINE
#else
#define GF_LAMBDA_INLINE __attribute__((always_inline))
#endif

namespace gf {

template <class Body, int... i>
GF_INLINE void static_for_impl(Body&& body, std::integer_sequence<int, i...>) {
  (body(std::integral_constant<int, i>{}), ...);
}

// body(0) ... body(n - 1) with constant arguments: arrays indexed by them live in registers.
template <int n, class Body>
GF_INLINE void static_for(Body&& body) {
  static_for_impl(body, std::make_integer_sequence<int, n>{});
}

// A byte four times.
constexpr uint32_t bytes4(int b) { return static_cast<uint32_t>(b) * 0x01010101u; }

GF_INLINE int32_t load_i32(const void* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Quantization step of a block of activations whose largest magnitude is amax, and its inverse;
// both 0 when the values are too small to have one.
GF_INLINE float step(float amax) { return amax > 1e-36f ? amax / 127.0f : 0.0f; }
GF_INLINE float inverse_step(float amax) { return amax > 1e-36f ? 127.0f / amax : 0.0f; }

// Magnitudes are compared by their bits, so that NaN is the greatest of all and no maximum loses
// it.
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// A block of 32 in which some value is NaN or infinite: no integers stand for it, and its step
// makes NaN of whatever it is multiplied by.
GF_INLINE float not_finite(int8_t* q, int32_t sums[2]) {
  std::memset(q, 0, 32);
  sums[0] = sums[1] = 0;
  return NAN;
}

GF_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

}  // namespace gf
