// How a lane of mul_mat_vec.cu and mul_mat_sparse.cu reads its 64 elements of a chunk of 2048 of a
// quantized row, and what it makes of them.
#pragma once

#include "cuda/dequant.cuh"

constexpr int kChunk = 2048, kFloatChunk = 512, kWideChunk = 1024;
constexpr int kRows = 2;  // weight rows a warp multiplies at once

struct XBlock {
  float d;
  short sum[2];  // of the int8 values, by 16
};

typedef Pack<u32, 4> Words4;

__device__ __forceinline__ u32 word_at(const char* p) { return *reinterpret_cast<const u32*>(p); }
__device__ __forceinline__ Words4 words_at(const char* p) {
  return *reinterpret_cast<const Words4*>(p);
}
__device__ __forceinline__ float half_at(const char* p) {
  return gf_f16_to_f32(*reinterpret_cast<const gf_u16*>(p));
}

// The word two bytes into the pair (a, b).
__device__ __forceinline__ u32 straddle(u32 a, u32 b) { return __byte_perm(a, b, 0x5432); }

// N words from `at` bytes after p, a multiple of two; p is aligned to words.
template <int N>
__device__ __forceinline__ void words_at2(const char* p, int at, u32* w) {
  const char* const q = p + (at & ~3);
  const u32 select = at & 2 ? 0x5432 : 0x3210;
  u32 last = word_at(q);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const u32 next = word_at(q + 4 * i + 4);
    w[i] = __byte_perm(last, next, select);
    last = next;
  }
}

// Bits 0..3 of b as bit 4 of each byte.
__device__ __forceinline__ u32 spread4(u32 b) { return ((b & 15) * 0x02040810u) & 0x10101010u; }

// What multiplies a block of 32: y = dx (s0 dot0 + s1 dot1 - m0 sum0 - m1 sum1), by halves of 16.
struct Scales {
  float s0, s1, m0, m1;
};

struct InOrder {
  static __device__ __forceinline__ int unit(int lane, int) { return lane; }
  static __device__ __forceinline__ int half(int, int h) { return h; }
};

// How a lane reads its 64 elements of a row of type W:
//   BYTES          of a chunk
//   SPLIT, MIN     whether the halves of a block have their own scales; whether m0 and m1 are used
//   Raw, load      what is kept in registers
//   block<H>       the int8 words and scales of block H (0 or 1) of the lane
//   unit, half     where in the column that block's elements are
// Of types without one of their own: signed bytes eight at a time, read where they lie.
template <class W>
struct Vec : InOrder {
  static constexpr int BYTES = kChunk / W::QK * (int)sizeof(W);
  static constexpr bool SPLIT = SignedKind<W>::SPLIT, MIN = false;
  struct Raw {
    const W* block;
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    return {reinterpret_cast<const W*>(row) + lane * 64 / W::QK};
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int lane, u32* q) {
    const int first = lane * 8 % (W::QK / 8) + 4 * H;
    float scales[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Signed8 s = signed8(r.block, first + i);
      q[2 * i] = s.lo;
      q[2 * i + 1] = s.hi;
      scales[i] = s.scale;
    }
    return {scales[0], scales[2], 0.0f, 0.0f};
  }
};

// Of blocks of 32 a lane has two, which are words as they lie in memory.
template <class W>
struct TwoBlocks : InOrder {
  static constexpr int BYTES = kChunk / 32 * (int)sizeof(W);
  struct Raw {
    u32 w[sizeof(W) / 2];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    Raw r;
#pragma unroll
    for (int i = 0; i < (int)sizeof(W) / 2; ++i) {
      r.w[i] = word_at(row + lane * 2 * (int)sizeof(W) + 4 * i);
    }
    return r;
  }
};

template <>
struct Vec<block_q4_0> : TwoBlocks<block_q4_0> {
  static constexpr bool SPLIT = false, MIN = true;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 v = H == 0 ? straddle(r.w[i], r.w[i + 1]) : r.w[5 + i];
      q[i] = v & 0x0F0F0F0Fu;
      q[4 + i] = (v >> 4) & 0x0F0F0F0Fu;
    }
    const float d = H == 0 ? Float<f16>::low(r.w[0]) : Float<f16>::high(r.w[4]);
    return {d, d, 8.0f * d, 8.0f * d};
  }
};

template <>
struct Vec<block_q4_1> : TwoBlocks<block_q4_1> {
  static constexpr bool SPLIT = false, MIN = true;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = r.w[5 * H + 1 + i] & 0x0F0F0F0Fu;
      q[4 + i] = (r.w[5 * H + 1 + i] >> 4) & 0x0F0F0F0Fu;
    }
    const float d = Float<f16>::low(r.w[5 * H]), m = -Float<f16>::high(r.w[5 * H]);
    return {d, d, m, m};
  }
};

// Nibbles v and the fifth bits of a block: elements 4 i to 4 i + 3 and 16 further.
__device__ __forceinline__ void five_bits(u32 v, u32 high, int i, u32* q) {
  q[i] = (v & 0x0F0F0F0Fu) | spread4(high >> (4 * i));
  q[4 + i] = ((v >> 4) & 0x0F0F0F0Fu) | spread4(high >> (16 + 4 * i));
}

template <>
struct Vec<block_q5_0> : TwoBlocks<block_q5_0> {
  static constexpr bool SPLIT = false, MIN = true;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
    const u32 high = H == 0 ? straddle(r.w[0], r.w[1]) : r.w[6];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      five_bits(H == 0 ? straddle(r.w[1 + i], r.w[2 + i]) : r.w[7 + i], high, i, q);
    }
    const float d = H == 0 ? Float<f16>::low(r.w[0]) : Float<f16>::high(r.w[5]);
    return {d, d, 16.0f * d, 16.0f * d};
  }
};

template <>
struct Vec<block_q5_1> : TwoBlocks<block_q5_1> {
  static constexpr bool SPLIT = false, MIN = true;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) five_bits(r.w[6 * H + 2 + i], r.w[6 * H + 1], i, q);
    const float d = Float<f16>::low(r.w[6 * H]), m = -Float<f16>::high(r.w[6 * H]);
    return {d, d, m, m};
  }
};

template <>
struct Vec<block_q8_0> : TwoBlocks<block_q8_0> {
  static constexpr bool SPLIT = false, MIN = false;
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = H == 0 ? straddle(r.w[i], r.w[i + 1]) : r.w[9 + i];
    const float d = H == 0 ? Float<f16>::low(r.w[0]) : Float<f16>::high(r.w[8]);
    return {d, d, 0.0f, 0.0f};
  }
};

// Scales and mins of blocks 2 j and 2 j + 1 of a q4_K or q5_K super-block, in the low two bytes;
// head is d, dmin and the 12 packed bytes (scales_k4.h).
__device__ __forceinline__ void scales_k4(const Words4& head, int j, u32* scales, u32* mins) {
  const u32 a = head.v[1], b = head.v[2], c = head.v[3];
  const bool first = j < 2;
  const u32 s = first ? a & 0x3F3F3F3Fu : (c & 0x0F0F0F0Fu) | ((a >> 2) & 0x30303030u);
  const u32 m = first ? b & 0x3F3F3F3Fu : ((c >> 4) & 0x0F0F0F0Fu) | ((b >> 2) & 0x30303030u);
  *scales = s >> (j % 2 * 16);
  *mins = m >> (j % 2 * 16);
}

template <int H>
__device__ __forceinline__ Scales scales_of(u32 d_dmin, u32 scales, u32 mins) {
  const float s = Float<f16>::low(d_dmin) * (float)((scales >> (8 * H)) & 255);
  const float m = Float<f16>::high(d_dmin) * (float)((mins >> (8 * H)) & 255);
  return {s, s, m, m};
}

template <>
struct Vec<block_q4_K> : InOrder {
  static constexpr int BYTES = kChunk / 256 * 144;
  static constexpr bool SPLIT = false, MIN = true;
  struct Raw {
    u32 d, scales, mins, w[8];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const char* const b = row + lane / 4 * 144;
    const int j = lane % 4;
    const Words4 head = words_at(b), lo = words_at(b + 16 + 32 * j), hi = words_at(b + 32 + 32 * j);
    Raw r;
    r.d = head.v[0];
    scales_k4(head, j, &r.scales, &r.mins);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r.w[i] = lo.v[i];
      r.w[4 + i] = hi.v[i];
    }
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = (r.w[i] >> (4 * H)) & 0x0F0F0F0Fu;
    return scales_of<H>(r.d, r.scales, r.mins);
  }
};

template <>
struct Vec<block_q5_K> : InOrder {
  static constexpr int BYTES = kChunk / 256 * 176;
  static constexpr bool SPLIT = false, MIN = true;
  struct Raw {
    u32 d, scales, mins, w[8], h[8];  // h: the fifth bits of both blocks in bits 0 and 1 of a byte
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const char* const b = row + lane / 4 * 176;
    const int j = lane % 4;
    const Words4 head = words_at(b);
    Raw r;
    r.d = head.v[0];
    scales_k4(head, j, &r.scales, &r.mins);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Words4 q = words_at(b + 48 + 32 * j + 16 * i), h = words_at(b + 16 + 16 * i);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        r.w[4 * i + n] = q.v[n];
        r.h[4 * i + n] = h.v[n] >> (2 * j);
      }
    }
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = ((r.w[i] >> (4 * H)) & 0x0F0F0F0Fu) | ((r.h[i] << (4 - H)) & 0x10101010u);
    }
    return scales_of<H>(r.d, r.scales, r.mins);
  }
};

// Lane 4 s + 2 n + u has blocks u and u + 2 of half n of super-block s: the low and high nibbles of
// the same 32 bytes.
template <>
struct Vec<block_q6_K> {
  static constexpr int BYTES = kChunk / 256 * 210;
  static constexpr bool SPLIT = true, MIN = true;
  struct Raw {
    u32 w[8], h[8];
    float d;
    int scales[4];
  };
  static __device__ __forceinline__ int unit(int lane, int h) { return (lane & ~1) + h; }
  static __device__ __forceinline__ int half(int lane, int) { return lane & 1; }
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const int at = lane / 4 * 210, n = lane / 2 % 2, u = lane % 2;
    const char* const b = row + at;
    Raw r;
    words_at2<8>(row, at + 64 * n + 32 * u, r.w);
    words_at2<8>(row, at + 128 + 32 * n, r.h);
#pragma unroll
    for (int i = 0; i < 8; ++i) r.h[i] >>= 2 * u;
    const signed char* const s = reinterpret_cast<const signed char*>(b + 192 + 8 * n + 2 * u);
    r.scales[0] = s[0];
    r.scales[1] = s[1];
    r.scales[2] = s[4];
    r.scales[3] = s[5];
    r.d = half_at(b + 208);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = ((r.w[i] >> (4 * H)) & 0x0F0F0F0Fu) | (((r.h[i] >> (4 * H)) & 0x03030303u) << 4);
    }
    const float s0 = r.d * (float)r.scales[2 * H], s1 = r.d * (float)r.scales[2 * H + 1];
    return {s0, s1, 32.0f * s0, 32.0f * s1};
  }
};

// Lane 4 s + 2 n + u of q2_K and q3_K has blocks 2 u and 2 u + 1 of half n of super-block s.
template <>
struct Vec<block_q2_K> : InOrder {
  static constexpr int BYTES = kChunk / 256 * 84;
  static constexpr bool SPLIT = true, MIN = true;
  struct Raw {
    u32 w[8], scales, d;
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const char* const b = row + lane / 4 * 84;
    const int n = lane / 2 % 2, u = lane % 2;
    Raw r;
#pragma unroll
    for (int i = 0; i < 8; ++i) r.w[i] = word_at(b + 16 + 32 * n + 4 * i) >> (4 * u);
    r.scales = word_at(b + 4 * (lane % 4));
    r.d = word_at(b + 80);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = (r.w[i] >> (2 * H)) & 0x03030303u;
    const u32 s = r.scales >> (16 * H);
    const float d = Float<f16>::low(r.d), m = Float<f16>::high(r.d);
    return {d * (float)(s & 15), d * (float)((s >> 8) & 15), m * (float)((s >> 4) & 15),
            m * (float)((s >> 12) & 15)};
  }
};

template <>
struct Vec<block_q3_K> : InOrder {
  static constexpr int BYTES = kChunk / 256 * 110;
  static constexpr bool SPLIT = true, MIN = true;
  struct Raw {
    u32 w[8], h[8];  // h: the high bits of both blocks in bits 0 and 1 of a byte
    float d;
    int scales[4];
  };
  static __device__ __forceinline__ Raw load(const char* row, int lane) {
    const int at = lane / 4 * 110, n = lane / 2 % 2, u = lane % 2;
    const char* const b = row + at;
    Raw r;
    words_at2<8>(row, at + 32 + 32 * n, r.w);
    words_at2<8>(row, at, r.h);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      r.w[i] >>= 4 * u;
      r.h[i] >>= 2 * (lane % 4);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r.scales[i] = gf_scale_q3_K(reinterpret_cast<const gf_u8*>(b + 96), lane % 4 * 4 + i);
    }
    r.d = half_at(b + 108);
    return r;
  }
  template <int H>
  static __device__ __forceinline__ Scales block(const Raw& r, int, u32* q) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = ((r.w[i] >> (2 * H)) & 0x03030303u) | (((r.h[i] >> H) & 0x01010101u) << 2);
    }
    const float s0 = r.d * (float)r.scales[2 * H], s1 = r.d * (float)r.scales[2 * H + 1];
    return {s0, s1, 4.0f * s0, 4.0f * s1};
  }
};
