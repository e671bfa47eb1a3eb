// The same as vec_weights.cuh for types whose elements are entries of a table of sixteen values.
#pragma once

#include "cuda/vec_weights.cuh"

template <>
struct Vec<block_iq4_nl> : TwoBlocks<block_iq4_nl> {
  static constexpr bool SPLIT = false, MIN = false;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      look_up(iq4_table(), H == 0 ? straddle(r.w[i], r.w[i + 1]) : r.w[5 + i], q + i, q + 4 + i);
    }
    const float d = H == 0 ? Float<f16>::low(r.w[0]) : Float<f16>::high(r.w[4]);
    return {d, d, 0.0f, 0.0f};
  }
};

template <>
struct Vec<block_iq4_xs> : InOrder {
  static constexpr int BYTES = kChunk / 256 * 136;
  static constexpr bool SPLIT = false, MIN = false;
  struct Raw {
    u32 w[8];
    float scales[2];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const auto* const b = reinterpret_cast<const block_iq4_xs*>(row) + lane / 4;
    const int s = lane % 4 * 2;
    Raw r;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      r.w[i] = word_at(reinterpret_cast<const char*>(b->qs) + 16 * s + 4 * i);
    }
    const float d = gf_f16_to_f32(b->d);
    r.scales[0] = d * (float)gf_scale_iq4_xs(b, s);
    r.scales[1] = d * (float)gf_scale_iq4_xs(b, s + 1);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) look_up(iq4_table(), r.w[4 * H + i], q + i, q + 4 + i);
    return {r.scales[H], r.scales[H], 0.0f, 0.0f};
  }
};

// Two blocks of 17 bytes begin at an even address.
template <>
struct Vec<block_mxfp4> : InOrder {
  static constexpr int BYTES = kChunk / 32 * 17;
  static constexpr bool SPLIT = false, MIN = false;
  struct Raw {
    u32 w[9];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    Raw r;
    words_at2<9>(row, lane * 34, r.w);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 codes = H == 0 ? __byte_perm(r.w[i], r.w[i + 1], 0x4321)
                               : __byte_perm(r.w[4 + i], r.w[5 + i], 0x5432);
      look_up(fp4_table(), codes, q + i, q + 4 + i);
    }
    const float d = gf_half_power(H == 0 ? r.w[0] & 255 : r.w[4] >> 8 & 255);
    return {d, d, 0.0f, 0.0f};
  }
};

template <>
struct Vec<block_nvfp4> : InOrder {
  static constexpr int BYTES = kChunk / 64 * 36;
  static constexpr bool SPLIT = true, MIN = false;
  struct Raw {
    u32 w[9];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    Raw r;
#pragma unroll
    for (int i = 0; i < 9; ++i) r.w[i] = word_at(row + lane * 36 + 4 * i);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i / 2 * 4 + i % 2;
      look_up(fp4_table(), r.w[1 + 4 * H + i], q + at, q + at + 2);
    }
    return {gf_half_e4m3(r.w[0] >> (16 * H) & 255), gf_half_e4m3(r.w[0] >> (16 * H + 8) & 255),
            0.0f, 0.0f};
  }
};
