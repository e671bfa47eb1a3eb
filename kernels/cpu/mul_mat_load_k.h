// How the packed K-quant blocks (256 elements: eight sub-blocks of 32) are unpacked.
//
// A Header reads a block's scales once for its 16 rows; weights<j>(b, c, w) and scales<j> then give
// sub-block c * kInner + j, as in mul_mat_load_legacy.h. Fields lie in the order of the block
// structs in kernels/quants, each interleaved over the 16 rows.
#pragma once

#include "cpu/mul_mat_load_legacy.h"

namespace gf {

// Element bytes of 32 * part .. + 32 of a field, shifted right by n and masked.
template <int n>
GF_INLINE void shifted_bytes(const uint8_t* qs, uint32_t mask, VecW (&w)[8]) {
  static_for<8>(
      [&](auto i) GF_LAMBDA_INLINE { w[i] = and_w(shr_w<n>(load_w(qs + 64 * i)), bytes4(mask)); });
}

struct KQuant {
  static constexpr int kBias = 0, kHalves = 1;
  static constexpr bool kSigned = false, kMins = false;
};

// Q4_K and Q5_K: x = d * sc * q - dmin * m with 6-bit sc and m a sub-block of 32.
struct KScaleMin : KQuant {
  static constexpr int kOuter = 4, kInner = 2;
  static constexpr bool kMins = true;
  struct Header {
    VecF d, minus_dmin;
    alignas(64) uint8_t sc[128], m[128];
    explicit GF_INLINE Header(const uint8_t* b)
        : d(f16x16(b)), minus_dmin(mul_f(f16x16(b + 32), splat_f(-1.0f))) {
      // Bytes 0-3: sc 0-3 in the low 6 bits; 4-7: m 0-3; 8-11: low halves of sc and m 4-7, whose
      // high 2 bits top the bytes before.
      const uint8_t* p = b + 64;
      for (int i = 0; i < 64; ++i) {
        sc[i] = p[i] & 63;
        m[i] = p[64 + i] & 63;
        sc[64 + i] = static_cast<uint8_t>((p[128 + i] & 15) | ((p[i] >> 2) & 48));
        m[64 + i] = static_cast<uint8_t>((p[128 + i] >> 4) | ((p[64 + i] >> 2) & 48));
      }
    }
  };
  template <int j>
  static GF_INLINE void scales(const Header& h, const uint8_t*, int c, VecF (&s)[1], VecF (&m)[1]) {
    s[0] = mul_f(h.d, u8x16(h.sc + 16 * (2 * c + j)));
    m[0] = mul_f(h.minus_dmin, u8x16(h.m + 16 * (2 * c + j)));
  }
};

struct LoadQ4_K : KScaleMin {
  static constexpr int kType = GF_Q4_K, kBlockBytes = 144, kBits = 4;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int c, VecW (&w)[8]) {
    shifted_bytes<4 * j>(b + 256 + 512 * c, 15, w);
  }
};

struct LoadQ5_K : KScaleMin {
  static constexpr int kType = GF_Q5_K, kBlockBytes = 176, kBits = 5;
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int c, VecW (&w)[8]) {
    shifted_bytes<4 * j>(b + 768 + 512 * c, 15, w);
    add_high_bits<4>(b + 256 + 64 * (2 * c + j), w);
  }
};

// Types with a scale for every 16 elements; four sub-blocks share 32 bytes of two-bit fields.
struct KHalves : KQuant {
  static constexpr int kOuter = 2, kInner = 4, kHalves = 2;
};

// x = d * sc * (q - 32), sc signed.
struct LoadQ6_K : KHalves {
  static constexpr int kType = GF_Q6_K, kBlockBytes = 210, kBits = 6, kBias = 32;
  struct Header {
    VecF d;
    explicit GF_INLINE Header(const uint8_t* b) : d(f16x16(b + 3328)) {}
  };
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int c, VecW (&w)[8]) {
    shifted_bytes<4 * (j / 2)>(b + 1024 * c + 512 * (j % 2), 15, w);
    static_for<8>([&](auto i) GF_LAMBDA_INLINE {
      const VecW h = load_w(b + 2048 + 512 * c + 64 * i);
      w[i] = or_w(w[i], and_w(shr_w<2 * j - 4>(h), bytes4(48)));
    });
  }
  template <int j>
  static GF_INLINE void scales(const Header& h, const uint8_t* b, int c, VecF (&s)[2],
                               VecF (&)[2]) {
    const uint8_t* sc = b + 3072 + 16 * (8 * c + 2 * j);
    s[0] = mul_f(h.d, i8x16(sc));
    s[1] = mul_f(h.d, i8x16(sc + 16));
  }
};

// x = d * sc * (q - 4): two low bits, one high bit a mask word, 6-bit sc less 32.
struct LoadQ3_K : KHalves {
  static constexpr int kType = GF_Q3_K, kBlockBytes = 110, kBits = 3, kBias = 4;
  struct Header {
    VecF d;
    alignas(64) uint8_t sc[256];
    explicit GF_INLINE Header(const uint8_t* b) : d(f16x16(b + 1728)) {
      // Bytes 0-7 hold the low halves of sc 0-7 and 8-15, bytes 8-11 the high 2 bits of four each.
      const uint8_t* p = b + 1536;
      for (int i = 0; i < 64; ++i) {
        const int high = p[128 + i];
        sc[i] = static_cast<uint8_t>(((p[i] & 15) | ((high << 4) & 48)) - 32);
        sc[64 + i] = static_cast<uint8_t>(((p[64 + i] & 15) | ((high << 2) & 48)) - 32);
        sc[128 + i] = static_cast<uint8_t>(((p[i] >> 4) | (high & 48)) - 32);
        sc[192 + i] = static_cast<uint8_t>(((p[64 + i] >> 4) | ((high >> 2) & 48)) - 32);
      }
    }
  };
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int c, VecW (&w)[8]) {
    shifted_bytes<2 * j>(b + 512 + 512 * c, 3, w);
    add_high_bits<2>(b + 64 * (4 * c + j), w);
  }
  template <int j>
  static GF_INLINE void scales(const Header& h, const uint8_t*, int c, VecF (&s)[2], VecF (&)[2]) {
    const uint8_t* sc = h.sc + 16 * (8 * c + 2 * j);
    s[0] = mul_f(h.d, i8x16(sc));
    s[1] = mul_f(h.d, i8x16(sc + 16));
  }
};

// x = d * sc * q - dmin * m, 4-bit sc and m in one byte.
struct LoadQ2_K : KHalves {
  static constexpr int kType = GF_Q2_K, kBlockBytes = 84, kBits = 2;
  static constexpr bool kMins = true;
  struct Header {
    VecF d, minus_dmin;
    alignas(64) uint8_t sc[256], m[256];
    explicit GF_INLINE Header(const uint8_t* b)
        : d(f16x16(b + 1280)), minus_dmin(mul_f(f16x16(b + 1312), splat_f(-1.0f))) {
      for (int i = 0; i < 256; ++i) {
        sc[i] = b[i] & 15;
        m[i] = b[i] >> 4;
      }
    }
  };
  template <int j>
  static GF_INLINE void weights(const uint8_t* b, int c, VecW (&w)[8]) {
    shifted_bytes<2 * j>(b + 256 + 512 * c, 3, w);
  }
  template <int j>
  static GF_INLINE void scales(const Header& h, const uint8_t*, int c, VecF (&s)[2], VecF (&m)[2]) {
    static_for<2>([&](auto k) GF_LAMBDA_INLINE {
      s[k] = mul_f(h.d, u8x16(h.sc + 16 * (8 * c + 2 * j + k)));
      m[k] = mul_f(h.minus_dmin, u8x16(h.m + 16 * (8 * c + 2 * j + k)));
    });
  }
};

}  // namespace gf
