// Reading rows of any type in pieces that suit a thread: eight elements of a quantized block, or
// one plain element. The whole-block functions of kernels/quants say what each layout means.
#pragma once

#include "cuda/common.cuh"
#include "cuda/signed8.cuh"
#include "quants/iq1_m.h"
#include "quants/iq1_s.h"
#include "quants/iq2_s.h"
#include "quants/iq2_xs.h"
#include "quants/iq2_xxs.h"
#include "quants/iq3_s.h"
#include "quants/iq3_xxs.h"
#include "quants/iq4_nl.h"
#include "quants/iq4_xs.h"
#include "quants/mxfp4.h"
#include "quants/nvfp4.h"
#include "quants/q2_k.h"
#include "quants/q3_k.h"
#include "quants/q4_0.h"
#include "quants/q4_1.h"
#include "quants/q4_k.h"
#include "quants/q5_0.h"
#include "quants/q5_1.h"
#include "quants/q5_k.h"
#include "quants/q6_k.h"
#include "quants/q8_0.h"
#include "quants/quantize_k.h"
#include "quants/tq1_0.h"
#include "quants/tq2_0.h"

// y = elements [8 c, 8 c + 8) of a block; a piece never crosses a sub-block.
__device__ __forceinline__ void dequantize8(const block_q4_0* b, int c, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const gf_u8* q = b->qs + c % 2 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = d * (float)(((q[j] >> (c / 2 * 4)) & 15) - 8);
}

__device__ __forceinline__ void dequantize8(const block_q4_1* b, int c, float* y) {
  const float d = gf_f16_to_f32(b->d), m = gf_f16_to_f32(b->m);
  const gf_u8* q = b->qs + c % 2 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = d * (float)((q[j] >> (c / 2 * 4)) & 15) + m;
}

__device__ __forceinline__ void dequantize8(const block_q5_0* b, int c, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const gf_u8* q = b->qs + c % 2 * 8;
  const int high = b->qh[c];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    y[j] = d * (float)((((q[j] >> (c / 2 * 4)) & 15) | (((high >> j) & 1) << 4)) - 16);
  }
}

__device__ __forceinline__ void dequantize8(const block_q5_1* b, int c, float* y) {
  const float d = gf_f16_to_f32(b->d), m = gf_f16_to_f32(b->m);
  const gf_u8* q = b->qs + c % 2 * 8;
  const int high = b->qh[c];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    y[j] = d * (float)(((q[j] >> (c / 2 * 4)) & 15) | (((high >> j) & 1) << 4)) + m;
  }
}

__device__ __forceinline__ void dequantize8(const block_q8_0* b, int c, float* y) {
  const float d = gf_f16_to_f32(b->d);
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = d * (float)b->qs[8 * c + j];
}

__device__ __forceinline__ void dequantize8(const block_q2_K* b, int c, float* y) {
  const int s = c / 2;  // sub-blocks of 16
  const float scale = gf_f16_to_f32(b->d) * (float)(b->scales[s] & 15);
  const float min = gf_f16_to_f32(b->dmin) * (float)(b->scales[s] >> 4);
  const gf_u8* q = b->qs + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = scale * (float)((q[j] >> (s / 2 % 4 * 2)) & 3) - min;
}

__device__ __forceinline__ void dequantize8(const block_q3_K* b, int c, float* y) {
  const int s = c / 2;  // sub-blocks of 16
  const float scale = gf_f16_to_f32(b->d) * (float)gf_scale_q3_K(b->scales, s);
  const gf_u8* q = b->qs + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
  const gf_u8* h = b->hmask + s % 2 * 16 + c % 2 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int low = (q[j] >> (s / 2 % 4 * 2)) & 3, high = (h[j] >> (s / 2)) & 1;
    y[j] = scale * (float)((low | (high << 2)) - 4);
  }
}

__device__ __forceinline__ void dequantize8(const block_q4_K* b, int c, float* y) {
  const int s = c / 4;  // sub-blocks of 32
  const float scale = gf_f16_to_f32(b->d) * (float)gf_scale_k4(b->scales, s);
  const float min = gf_f16_to_f32(b->dmin) * (float)gf_min_k4(b->scales, s);
  const gf_u8* q = b->qs + s / 2 * 32 + c % 4 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = scale * (float)((q[j] >> (s % 2 * 4)) & 15) - min;
}

__device__ __forceinline__ void dequantize8(const block_q5_K* b, int c, float* y) {
  const int s = c / 4;  // sub-blocks of 32
  const float scale = gf_f16_to_f32(b->d) * (float)gf_scale_k4(b->scales, s);
  const float min = gf_f16_to_f32(b->dmin) * (float)gf_min_k4(b->scales, s);
  const gf_u8* q = b->qs + s / 2 * 32 + c % 4 * 8;
  const gf_u8* h = b->qh + c % 4 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int low = (q[j] >> (s % 2 * 4)) & 15, high = (h[j] >> s) & 1;
    y[j] = scale * (float)(low | (high << 4)) - min;
  }
}

__device__ __forceinline__ void dequantize8(const block_q6_K* b, int c, float* y) {
  const int s = c / 2;  // sub-blocks of 16
  const float scale = gf_f16_to_f32(b->d) * (float)b->scales[s];
  const gf_u8* ql = b->ql + s / 8 * 64 + s % 4 * 16 + c % 2 * 8;
  const gf_u8* qh = b->qh + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int low = (ql[j] >> (s / 4 % 2 * 4)) & 15, high = (qh[j] >> (s / 2 % 4 * 2)) & 3;
    y[j] = scale * (float)((low | (high << 4)) - 32);
  }
}

template <class W>
__device__ __forceinline__ void dequantize8(const W* b, int c, float* y) {
  const Signed8 s = signed8(b, c);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    y[j] = s.scale * (float)(signed char)(s.lo >> (8 * j));
    y[4 + j] = s.scale * (float)(signed char)(s.hi >> (8 * j));
  }
}

// How a row of type T is read: PIECE elements at a time, piece p of a row with stride nb0 between
// elements (plain types; quantized rows are dense).
template <class T>
struct Row {
  static constexpr int PIECE = 8;
  static __device__ __forceinline__ void read(const char* row, i64, i64 p, float* y) {
    constexpr int pieces = T::QK / 8;
    dequantize8(reinterpret_cast<const T*>(row) + p / pieces, (int)(p % pieces), y);
  }
};
template <class T>
struct PlainRow {
  static constexpr int PIECE = 1;
  static __device__ __forceinline__ void read(const char* row, i64 nb0, i64 p, float* y) {
    y[0] = to_f32(*reinterpret_cast<const T*>(row + p * nb0));
  }
};
template <>
struct Row<f32> : PlainRow<f32> {};
template <>
struct Row<f16> : PlainRow<f16> {};
template <>
struct Row<bf16> : PlainRow<bf16> {};

__device__ inline void quantize_block(const float* x, block_q2_K* b) { gf_quantize_q2_K(x, b); }
__device__ inline void quantize_block(const float* x, block_q3_K* b) { gf_quantize_q3_K(x, b); }
__device__ inline void quantize_block(const float* x, block_q4_K* b) { gf_quantize_q4_K(x, b); }
__device__ inline void quantize_block(const float* x, block_q5_K* b) { gf_quantize_q5_K(x, b); }
__device__ inline void quantize_block(const float* x, block_q6_K* b) { gf_quantize_q6_K(x, b); }
__device__ inline void quantize_block(const float* x, block_iq4_nl* b) { gf_quantize_iq4_nl(x, b); }
__device__ inline void quantize_block(const float* x, block_iq4_xs* b) { gf_quantize_iq4_xs(x, b); }
__device__ inline void quantize_block(const float* x, block_mxfp4* b) { gf_quantize_mxfp4(x, b); }
__device__ inline void quantize_block(const float* x, block_nvfp4* b) { gf_quantize_nvfp4(x, b); }
__device__ inline void quantize_block(const float* x, block_tq1_0* b) { gf_quantize_tq1_0(x, b); }
__device__ inline void quantize_block(const float* x, block_tq2_0* b) { gf_quantize_tq2_0(x, b); }

// The unit in which a row of type T is written: a whole quantized block, or one plain element.
template <class T>
struct Writer {
  static constexpr int UNIT = T::QK;
  static __device__ __forceinline__ void write(char* row, i64, i64 u, const float* y) {
    quantize_block(y, reinterpret_cast<T*>(row) + u);
  }
};
template <class T>
struct PlainWriter {
  static constexpr int UNIT = 1;
  static __device__ __forceinline__ void write(char* row, i64 nb0, i64 u, const float* y) {
    *reinterpret_cast<T*>(row + u * nb0) = Float<T>::from(y[0]);
  }
};
template <>
struct Writer<f32> : PlainWriter<f32> {};
template <>
struct Writer<f16> : PlainWriter<f16> {};
template <>
struct Writer<bf16> : PlainWriter<bf16> {};
