// How packed blocks are unpacked, by weight type.
//
// A packed block holds, interleaved over 16 rows: the scales, then for each 32 elements their low
// bits and their high bits (see repack.cpp). A loader turns 32 elements into 8 registers of 4 bytes
// a row, in element order, and gives the rows' scales for them: x = s * (q - kBias), plus m where
// kMins. Where a register holds fewer rows than sixteen, it does so part by part; what serves all
// parts of a block is computed when the loader is made.
#pragma once

#include "cpu/mul_mat_vec.h"

namespace gf {

constexpr int kRows = 16;  // rows interleaved in a packed group
constexpr int kParts = kRows / kVecRows;

// Where the rows of part `part` begin among sixteen units of `unit` bytes.
constexpr int rows_at(int part, int unit = 1) { return part * kVecRows * unit; }

// Where elements 4i .. 4i + 3 of a field of `bits` bits an element are: unit i % bits of the field,
// which holds, from its lowest bits up, elements 4u .., 4(u + bits) .., 4(u + 2 bits) ..
template <int bits, int i>
GF_INLINE VecW unit_of(const uint8_t* p) {
  return load_w(p + 64 * (i % bits));
}

// Groups of packed rows that follow each other.
struct PackedGroups {
  const uint8_t* at;
  int64_t bytes;  // of one
  int n;
};

// What types have in common. kHeader: bytes of scales a row.
template <int type, int header, int elements, int low, int high, int halves, int bias, bool mins>
struct Layout {
  static constexpr int kType = type;
  static constexpr int kSubBlocks = elements / 32;
  static constexpr int kBits = low + high;
  static constexpr int kHeaderBytes = header;
  static constexpr int kBlockBytes = header + elements * kBits / 8;
  static constexpr int kHalves = halves;  // scales for 32 elements
  static constexpr bool kMins = mins;
  static constexpr bool kSigned = low == 8 && kSignedDot;
  static constexpr int kBias = kSigned ? 0 : bias;

  static GF_INLINE void weights(const uint8_t* block, int sub, int part, VecW (&w)[8]) {
    const uint8_t* p = block + kRows * (header + sub * 4 * kBits) + rows_at(part, 4);
    static_for<8>([&](auto i) GF_LAMBDA_INLINE {
      if constexpr (low == 8) {
        w[i] = load_w(p + 64 * i);
        if constexpr (!kSigned) w[i] = xor_w(w[i], bytes4(128));
      } else {
        w[i] = field<low, low*(i / low)>(unit_of<low, i>(p));
      }
      if constexpr (high > 0) {
        w[i] = add_field<high, high*(i / high), low>(w[i], unit_of<high, i>(p + 64 * low));
      }
    });
  }
};

// -- one float16 scale a block, or a scale and a minimum

template <int type, int low, int high, int bias, int elements = 32>
struct OneScale : Layout<type, 2, elements, low, high, 1, bias, false> {
  const uint8_t* block;
  struct Rows {
    VecF d;
    GF_INLINE void scales(int, VecF (&s)[1], VecF (&)[1]) const { s[0] = d; }
  };
  explicit GF_INLINE OneScale(const uint8_t* b) : block(b) {}
  GF_INLINE Rows rows(int part) const { return {f16_rows(block + rows_at(part, 2))}; }
};

template <int type, int low, int high>
struct ScaleAndMin : Layout<type, 4, 32, low, high, 1, 0, true> {
  const uint8_t* block;
  struct Rows {
    VecF d, min;
    GF_INLINE void scales(int, VecF (&s)[1], VecF (&m)[1]) const {
      s[0] = d;
      m[0] = min;
    }
  };
  explicit GF_INLINE ScaleAndMin(const uint8_t* b) : block(b) {}
  GF_INLINE Rows rows(int part) const {
    const uint8_t* p = block + rows_at(part, 2);
    return {f16_rows(p), f16_rows(p + 32)};
  }
};

using LoadQ4_0 = OneScale<GF_Q4_0, 4, 0, 8>;
using LoadQ4_1 = ScaleAndMin<GF_Q4_1, 4, 0>;
using LoadQ5_0 = OneScale<GF_Q5_0, 4, 1, 16>;
using LoadQ5_1 = ScaleAndMin<GF_Q5_1, 4, 1>;
using LoadQ8_0 = OneScale<GF_Q8_0, 8, 0, 128>;
using LoadTQ2_0 = OneScale<GF_TQ2_0, 2, 0, 1, 256>;

// -- K-quants, 256 elements: float16 d (and dmin) times small integers

GF_INLINE VecF minus_f16_rows(const uint8_t* p) { return mul_f(f16_rows(p), splat_f(-1.0f)); }

// d * sc, signed sc for sixteen elements.
struct SignedScales {
  VecF d;
  const uint8_t* sc;
  GF_INLINE void scales(int sub, VecF (&s)[2], VecF (&)[2]) const {
    s[0] = mul_f(d, i8_rows(sc + 32 * sub));
    s[1] = mul_f(d, i8_rows(sc + 32 * sub + 16));
  }
};

// Q4_K and Q5_K: x = d * sc * q - dmin * m, 6-bit sc and m for 32 elements.
template <int type, int high>
struct ScalesK4 : Layout<type, 16, 256, 4, high, 1, 0, true> {
  const uint8_t* block;
  alignas(64) uint8_t sc[128], m[128];
  struct Rows {
    VecF d, minus_dmin;
    const uint8_t *sc, *m;
    GF_INLINE void scales(int sub, VecF (&s)[1], VecF (&mins)[1]) const {
      s[0] = mul_f(d, u8_rows(sc + 16 * sub));
      mins[0] = mul_f(minus_dmin, u8_rows(m + 16 * sub));
    }
  };
  explicit GF_INLINE ScalesK4(const uint8_t* b) : block(b) {
    // Bytes 0-3: sc 0-3 in the low 6 bits; 4-7: m 0-3; 8-11: low halves of sc and m 4-7, whose
    // high 2 bits top the bytes before.
    const uint8_t* p = block + 64;
    for (int i = 0; i < 64; ++i) {
      sc[i] = p[i] & 63;
      m[i] = p[64 + i] & 63;
      sc[64 + i] = static_cast<uint8_t>((p[128 + i] & 15) | ((p[i] >> 2) & 48));
      m[64 + i] = static_cast<uint8_t>((p[128 + i] >> 4) | ((p[64 + i] >> 2) & 48));
    }
  }
  GF_INLINE Rows rows(int part) const {
    const uint8_t* p = block + rows_at(part, 2);
    return {f16_rows(p), minus_f16_rows(p + 32), sc + rows_at(part), m + rows_at(part)};
  }
};

using LoadQ4_K = ScalesK4<GF_Q4_K, 0>;
using LoadQ5_K = ScalesK4<GF_Q5_K, 1>;

// x = d * sc * (q - 32), signed sc for 16 elements.
struct LoadQ6_K : Layout<GF_Q6_K, 18, 256, 4, 2, 2, 32, false> {
  const uint8_t* block;
  explicit GF_INLINE LoadQ6_K(const uint8_t* b) : block(b) {}
  GF_INLINE SignedScales rows(int part) const {
    return {f16_rows(block + rows_at(part, 2)), block + 32 + rows_at(part)};
  }
};

// x = d * (sc - 32) * (q - 4), 6-bit sc for 16 elements.
struct LoadQ3_K : Layout<GF_Q3_K, 14, 256, 2, 1, 2, 4, false> {
  const uint8_t* block;
  alignas(64) uint8_t sc[256];
  explicit GF_INLINE LoadQ3_K(const uint8_t* b) : block(b) {
    // Bytes 0-7 hold the low halves of sc 0-7 and 8-15, bytes 8-11 the high 2 bits of four each.
    const uint8_t* p = block + 32;
    for (int i = 0; i < 64; ++i) {
      const int high = p[128 + i];
      sc[i] = static_cast<uint8_t>(((p[i] & 15) | ((high << 4) & 48)) - 32);
      sc[64 + i] = static_cast<uint8_t>(((p[64 + i] & 15) | ((high << 2) & 48)) - 32);
      sc[128 + i] = static_cast<uint8_t>(((p[i] >> 4) | (high & 48)) - 32);
      sc[192 + i] = static_cast<uint8_t>(((p[64 + i] >> 4) | ((high >> 2) & 48)) - 32);
    }
  }
  GF_INLINE SignedScales rows(int part) const {
    return {f16_rows(block + rows_at(part, 2)), sc + rows_at(part)};
  }
};

// x = d * sc * q - dmin * m, 4-bit sc and m in one byte for 16 elements.
struct LoadQ2_K : Layout<GF_Q2_K, 20, 256, 2, 0, 2, 0, true> {
  const uint8_t* block;
  alignas(64) uint8_t sc[256], m[256];
  struct Rows {
    VecF d, minus_dmin;
    const uint8_t *sc, *m;
    GF_INLINE void scales(int sub, VecF (&s)[2], VecF (&mins)[2]) const {
      static_for<2>([&](auto h) GF_LAMBDA_INLINE {
        s[h] = mul_f(d, u8_rows(sc + 16 * (2 * sub + h)));
        mins[h] = mul_f(minus_dmin, u8_rows(m + 16 * (2 * sub + h)));
      });
    }
  };
  explicit GF_INLINE LoadQ2_K(const uint8_t* b) : block(b) {
    for (int i = 0; i < 256; ++i) {
      sc[i] = block[64 + i] & 15;
      m[i] = block[64 + i] >> 4;
    }
  }
  GF_INLINE Rows rows(int part) const {
    const uint8_t* p = block + rows_at(part, 2);
    return {f16_rows(p), minus_f16_rows(p + 32), sc + rows_at(part), m + rows_at(part)};
  }
};

}  // namespace gf
