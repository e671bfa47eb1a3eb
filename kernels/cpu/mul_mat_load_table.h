// How packed blocks of four-bit codes are unpacked that stand for sixteen fixed values: a byte
// shuffle looks the values up.
#pragma once

#include "cpu/mul_mat_load.h"
#include "quants/mxfp4.h"
#include "quants/nvfp4.h"

namespace gf {

// Values of IQ4_NL, which take eight bits: signed where the instruction set multiplies those.
struct Iq4Table {
  static constexpr bool kSigned = kSignedDot;
  static constexpr int kBias = kSigned ? 0 : 127, kBits = 8;
  static constexpr int kLeast = kSigned ? 0 : -127;  // what value 0 stands for
  static constexpr const gf_i8* kValues = gf_iq4_values;
};

// Doubled FP4 numbers, -12 to 12: as 0 to 24 where signed ones cost more.
struct Fp4Table {
  static constexpr bool kSigned = kSignedFree;
  static constexpr int kBias = kSigned ? 0 : 12, kBits = 5, kLeast = kSigned ? 0 : -12;
  static constexpr const gf_i8* kValues = gf_fp4_values;
};

template <class Table, int type, int header, int elements, int halves>
struct TableLayout {
  static constexpr int kType = type;
  static constexpr int kSubBlocks = elements / 32;
  static constexpr int kBits = Table::kBits;
  static constexpr int kBlockBytes = header + elements / 2;
  static constexpr int kHalves = halves;  // scales for 32 elements
  static constexpr bool kMins = false;
  static constexpr bool kSigned = Table::kSigned;
  static constexpr int kBias = Table::kBias;

  static GF_INLINE void weights(const uint8_t* block, int sub, int part, VecW (&w)[8]) {
    alignas(16) uint8_t values[16];
    for (int i = 0; i < 16; ++i)
      values[i] = static_cast<uint8_t>(Table::kValues[i] - Table::kLeast);
    const uint8_t* p = block + kRows * (header + sub * 16) + rows_at(part, 4);
    static_for<8>([&](auto i) GF_LAMBDA_INLINE {
      w[i] = look_up(values, field<4, 4 * (i / 4)>(unit_of<4, i>(p)));
    });
  }
};

struct LoadIQ4_NL : TableLayout<Iq4Table, GF_IQ4_NL, 2, 32, 1> {
  const uint8_t* block;
  explicit GF_INLINE LoadIQ4_NL(const uint8_t* b) : block(b) {}
  GF_INLINE LoadQ4_0::Rows rows(int part) const { return {f16_rows(block + rows_at(part, 2))}; }
};

struct LoadIQ4_XS : TableLayout<Iq4Table, GF_IQ4_XS, 8, 256, 1> {
  const uint8_t* block;
  alignas(64) uint8_t sc[128];
  struct Rows {
    VecF d;
    const uint8_t* sc;
    GF_INLINE void scales(int sub, VecF (&s)[1], VecF (&)[1]) const {
      s[0] = mul_f(d, i8_rows(sc + 16 * sub));
    }
  };
  explicit GF_INLINE LoadIQ4_XS(const uint8_t* b) : block(b) {
    uint16_t high[16];
    std::memcpy(high, block + 32, sizeof high);
    for (int s = 0; s < 8; ++s) {
      const uint8_t* low = block + 64 + s / 2 * 16;
      for (int r = 0; r < 16; ++r) {
        const int code = (low[r] >> (s % 2 * 4) & 15) | (high[r] >> (2 * s) & 3) << 4;
        sc[16 * s + r] = static_cast<uint8_t>(code - 32);
      }
    }
  }
  GF_INLINE Rows rows(int part) const {
    return {f16_rows(block + rows_at(part, 2)), sc + rows_at(part)};
  }
};

struct LoadMXFP4 : TableLayout<Fp4Table, GF_MXFP4, 1, 32, 1> {
  const uint8_t* block;
  explicit GF_INLINE LoadMXFP4(const uint8_t* b) : block(b) {}
  GF_INLINE LoadQ4_0::Rows rows(int part) const {
    alignas(64) float powers[kVecRows];
    for (int r = 0; r < kVecRows; ++r) powers[r] = gf_half_power(block[rows_at(part) + r]);
    return {load_f(powers)};
  }
};

// Two sub-blocks of 32, each with a scale for 16 elements.
struct LoadNVFP4 : TableLayout<Fp4Table, GF_NVFP4, 4, 64, 2> {
  const uint8_t* block;
  struct Rows {
    alignas(64) uint16_t half[4 * kVecRows];  // the scales as float16, divided by 128
    GF_INLINE void scales(int sub, VecF (&s)[2], VecF (&)[2]) const {
      static_for<2>([&](auto h) GF_LAMBDA_INLINE {
        const auto* p = reinterpret_cast<const uint8_t*>(half + kVecRows * (2 * sub + h));
        s[h] = mul_f(f16_rows(p), splat_f(128.0f));
      });
    }
  };
  explicit GF_INLINE LoadNVFP4(const uint8_t* b) : block(b) {}
  GF_INLINE Rows rows(int part) const {
    Rows rows;
    for (int i = 0; i < 4 * kVecRows; ++i) {
      const uint8_t b = block[i / kVecRows * kRows + rows_at(part) + i % kVecRows];
      rows.half[i] = static_cast<uint16_t>(b == 0x7F ? 0 : (b & 0x7F) << 7);
    }
    return rows;
  }
};

}  // namespace gf
