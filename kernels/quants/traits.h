// Row-level access by type number, for kernels that take any type (get_rows, set_rows, cpy, ...).
// CPU only; CUDA kernels are compiled for one type and include its file.
#pragma once

#include "q4_0.h"
#include "q8_0.h"

// Numbers of the plain types; a quantized type carries its own in block_x::TYPE.
enum { GF_TYPE_F32 = 0, GF_TYPE_F16 = 1, GF_TYPE_BF16 = 30 };

// Elements a block, 1 for plain types, 0 for a type this file does not know.
static inline int gf_block(int type) {
  switch (type) {
    case GF_TYPE_F32:
    case GF_TYPE_F16:
    case GF_TYPE_BF16:
      return 1;
    case block_q4_0::TYPE:
      return block_q4_0::QK;
    case block_q8_0::TYPE:
      return block_q8_0::QK;
  }
  return 0;
}

// Bytes a block, 0 for a type this file does not know.
static inline int gf_block_bytes(int type) {
  switch (type) {
    case GF_TYPE_F32:
      return 4;
    case GF_TYPE_F16:
    case GF_TYPE_BF16:
      return 2;
    case block_q4_0::TYPE:
      return sizeof(block_q4_0);
    case block_q8_0::TYPE:
      return sizeof(block_q8_0);
  }
  return 0;
}

// Bytes of a contiguous row of n elements; -1 for an unknown type or a row that splits a block.
static inline gf_i64 gf_row_bytes(int type, gf_i64 n) {
  const int block = gf_block(type);
  if (block == 0 || n < 0 || n % block != 0) return -1;
  return n / block * gf_block_bytes(type);
}

template <class Block>
static inline void gf_dequantize_blocks(const void* row, float* y, gf_i64 n) {
  const Block* b = (const Block*)row;
  for (gf_i64 i = 0; i < n / Block::QK; ++i) dequantize_block(b + i, y + i * Block::QK);
}

template <class Block>
static inline void gf_quantize_blocks(const float* x, void* row, gf_i64 n) {
  Block* b = (Block*)row;
  for (gf_i64 i = 0; i < n / Block::QK; ++i) quantize_block(x + i * Block::QK, b + i);
}

static inline void gf_f16_row_to_f32(const gf_u16* x, float* y, gf_i64 n) {
  gf_i64 i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
  }
#endif
  for (; i < n; ++i) y[i] = gf_f16_to_f32(x[i]);
}

static inline void gf_f32_row_to_f16(const float* x, gf_u16* y, gf_i64 n) {
  gf_i64 i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128((__m128i*)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
  }
#endif
  for (; i < n; ++i) y[i] = gf_f32_to_f16(x[i]);
}

// y[0..n) = the row's values. n must be a multiple of gf_block(type), the type known.
static inline void gf_dequantize_row(int type, const void* row, float* y, gf_i64 n) {
  switch (type) {
    case GF_TYPE_F32:
      for (gf_i64 i = 0; i < n; ++i) y[i] = ((const float*)row)[i];
      return;
    case GF_TYPE_F16:
      return gf_f16_row_to_f32((const gf_u16*)row, y, n);
    case GF_TYPE_BF16:
      for (gf_i64 i = 0; i < n; ++i) y[i] = gf_bf16_to_f32(((const gf_u16*)row)[i]);
      return;
    case block_q4_0::TYPE:
      return gf_dequantize_blocks<block_q4_0>(row, y, n);
    case block_q8_0::TYPE:
      return gf_dequantize_blocks<block_q8_0>(row, y, n);
  }
}

// row = x[0..n) in the given type. n must be a multiple of gf_block(type), the type known.
static inline void gf_quantize_row(int type, const float* x, void* row, gf_i64 n) {
  switch (type) {
    case GF_TYPE_F32:
      for (gf_i64 i = 0; i < n; ++i) ((float*)row)[i] = x[i];
      return;
    case GF_TYPE_F16:
      return gf_f32_row_to_f16(x, (gf_u16*)row, n);
    case GF_TYPE_BF16:
      for (gf_i64 i = 0; i < n; ++i) ((gf_u16*)row)[i] = gf_f32_to_bf16(x[i]);
      return;
    case block_q4_0::TYPE:
      return gf_quantize_blocks<block_q4_0>(x, row, n);
    case block_q8_0::TYPE:
      return gf_quantize_blocks<block_q8_0>(x, row, n);
  }
}
