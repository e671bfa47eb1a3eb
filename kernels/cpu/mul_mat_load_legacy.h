// How the packed blocks of the one-scale types (32 elements a block) are unpacked.
//
// A loader turns one block of 16 interleaved rows into 8 registers of 4 unsigned bytes a row, in
// element order, and into the rows' scales. x = s * (q - kBias), plus m where kMins.
#pragma once

#include "cpu/mul_mat_vec.h"

namespace gf {

constexpr uint32_t bytes4(uint32_t b) { return b * 0x01010101u; }

// Low halves of 16 bytes are elements 0..15, high halves 16..31.
GF_INLINE void nibbles_16(const uint8_t* qs, VecW (&w)[8]) {
  static_for<4>([&](auto i) GF_LAMBDA_INLINE {
    const VecW x = load_w(qs + 64 * i);
    w[i] = and_w(x, bytes4(15));
    w[i + 4] = and_w(shr_w<4>(x), bytes4(15));
  });
}

// Adds bit `kAt` to each byte from a word of 32 bits a row: after packing, bit 8 * b + i belongs to
// element 4 * i + b (see spread_bits in repack.cpp).
template <int kAt>
GF_INLINE void add_high_bits(const uint8_t* bits, VecW (&w)[8]) {
  const VecW h = load_w(bits);
  static_for<8>([&](auto i) GF_LAMBDA_INLINE {
    w[i] = or_w(w[i], and_w(shr_w<i - kAt>(h), bytes4(1u << kAt)));
  });
}

struct Legacy {
  static constexpr int kOuter = 1, kInner = 1, kHalves = 1;
  static constexpr bool kSigned = false, kMins = false;
  struct Header {
    explicit Header(const uint8_t*) {}
  };
};

// x = d * (q - bias), d in front.
struct OneScale : Legacy {
  template <int j>
  static GF_INLINE void scales(const Header&, const uint8_t* b, int, VecF (&s)[1], VecF (&)[1]) {
    s[0] = f16x16(b);
  }
};

// x = d * q + m, d and m in front.
struct ScaleAndMin : Legacy {
  static constexpr int kBias = 0;
  static constexpr bool kMins = true;
  template <int j>
  static GF_INLINE void scales(const Header&, const uint8_t* b, int, VecF (&s)[1], VecF (&m)[1]) {
    s[0] = f16x16(b);
    m[0] = f16x16(b + 32);
  }
};

struct LoadQ4_0 : OneScale {
  static constexpr int kType = GF_Q4_0, kBlockBytes = 18, kBits = 4, kBias = 8;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int, VecW (&w)[8]) {
    nibbles_16(b + 32, w);
  }
};

struct LoadQ5_0 : OneScale {
  static constexpr int kType = GF_Q5_0, kBlockBytes = 22, kBits = 5, kBias = 16;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int, VecW (&w)[8]) {
    nibbles_16(b + 96, w);
    add_high_bits<4>(b + 32, w);
  }
};

struct LoadQ8_0 : OneScale {
  static constexpr bool kSigned = kSignedDot;
  static constexpr int kType = GF_Q8_0, kBlockBytes = 34, kBits = 8, kBias = kSigned ? 0 : 128;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int, VecW (&w)[8]) {
    static_for<8>([&](auto i) GF_LAMBDA_INLINE {
      w[i] = load_w(b + 32 + 64 * i);
      if constexpr (!kSigned) w[i] = xor_w(w[i], bytes4(128));
    });
  }
};

struct LoadQ4_1 : ScaleAndMin {
  static constexpr int kType = GF_Q4_1, kBlockBytes = 20, kBits = 4;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int, VecW (&w)[8]) {
    nibbles_16(b + 64, w);
  }
};

struct LoadQ5_1 : ScaleAndMin {
  static constexpr int kType = GF_Q5_1, kBlockBytes = 24, kBits = 5;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int, VecW (&w)[8]) {
    nibbles_16(b + 128, w);
    add_high_bits<4>(b + 64, w);
  }
};

}  // namespace gf
