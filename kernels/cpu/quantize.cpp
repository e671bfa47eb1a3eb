// Whole rows to and from any type: for kernels, and for the quantizer, the loader and the tests,
// which thread it by handing each thread its own range of rows.
#include "cpu/abi.h"
#include "quants/traits.h"

// The searches for scales are in cpu/quantize_search.cpp, compiled once a library.
void quantize_block(const float* x, block_q2_K* b);
void quantize_block(const float* x, block_q3_K* b);
void quantize_block(const float* x, block_q4_K* b);
void quantize_block(const float* x, block_q5_K* b);
void quantize_block(const float* x, block_q6_K* b);
void quantize_block(const float* x, block_iq4_nl* b);
void quantize_block(const float* x, block_iq4_xs* b);
void quantize_block(const float* x, block_mxfp4* b);
void quantize_block(const float* x, block_nvfp4* b);
void quantize_block(const float* x, block_tq1_0* b);
void quantize_block(const float* x, block_tq2_0* b);

namespace {

void gf_f16_row_to_f32(const gf_u16* x, float* y, gf_i64 n) {
  gf_i64 i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
  }
#endif
  for (; i < n; ++i) y[i] = gf_f16_to_f32(x[i]);
}

void gf_f32_row_to_f16(const float* x, gf_u16* y, gf_i64 n) {
  gf_i64 i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128((__m128i*)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
  }
#endif
  for (; i < n; ++i) y[i] = gf_f32_to_f16(x[i]);
}

enum { OK = 0, UNKNOWN_TYPE = 1, BAD_ROW_LENGTH = 2, BAD_VALUE = 3 };

int check(int32_t type, int64_t n_rows, int64_t n_per_row) {
  if (gf_block(type) == 0) return UNKNOWN_TYPE;
  if (n_rows < 0 || gf_row_bytes(type, n_per_row) < 0) return BAD_ROW_LENGTH;
  return OK;
}

// Largest magnitude whose block scale still fits float16; engine/quants has the same limits.
float largest_value(int32_t type) {
  switch (type) {
    case GF_Q4_0:
      return 65504.0f * 8;
    case GF_Q5_0:
      return 65504.0f * 16;
    case GF_Q8_0:
      return 65504.0f * 127;
    case GF_MXFP4:
      return 3.402823466e+38f;
    case GF_NVFP4:
      return 6 * 448.0f;
  }
  return 65504.0f;
}

bool all_within(const float* x, int64_t n, float limit) {
  int bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= !(gf_abs(x[i]) <= limit);  // true for NaN as well
  return !bad;
}

}  // namespace

void gf_dequantize_row(int type, const void* row, float* y, gf_i64 n) {
  if (type == GF_TYPE_F32) {
    for (gf_i64 i = 0; i < n; ++i) y[i] = ((const float*)row)[i];
  } else if (type == GF_TYPE_F16) {
    gf_f16_row_to_f32((const gf_u16*)row, y, n);
  } else if (type == GF_TYPE_BF16) {
    for (gf_i64 i = 0; i < n; ++i) y[i] = gf_bf16_to_f32(((const gf_u16*)row)[i]);
  } else {
    gf_visit_block(type, [&](auto tag) {
      using Block = typename decltype(tag)::Block;
      const Block* b = (const Block*)row;
      for (gf_i64 i = 0; i < n / Block::QK; ++i) dequantize_block(b + i, y + i * Block::QK);
    });
  }
}

void gf_quantize_row(int type, const float* x, void* row, gf_i64 n) {
  if (type == GF_TYPE_F32) {
    for (gf_i64 i = 0; i < n; ++i) ((float*)row)[i] = x[i];
  } else if (type == GF_TYPE_F16) {
    gf_f32_row_to_f16(x, (gf_u16*)row, n);
  } else if (type == GF_TYPE_BF16) {
    for (gf_i64 i = 0; i < n; ++i) ((gf_u16*)row)[i] = gf_f32_to_bf16(x[i]);
  } else {
    gf_visit_writable(type, [&](auto tag) {
      using Block = typename decltype(tag)::Block;
      Block* b = (Block*)row;
      for (gf_i64 i = 0; i < n / Block::QK; ++i) quantize_block(x + i * Block::QK, b + i);
    });
  }
}

// Quantizes n_rows dense rows of n_per_row floats. Returns 0; 1 a type without a quantizer; 2 the
// row length splits a block; 3 a value is NaN, infinite or beyond what the type's float16 scale can
// reach (quantized types only; the rows before it are written).
GF_EXPORT int32_t gf_quantize_rows(int32_t type, const float* x, void* out, int64_t n_rows,
                                   int64_t n_per_row) {
  if (const int error = check(type, n_rows, n_per_row)) return error;
  if (!gf_writable(type)) return UNKNOWN_TYPE;
  const int64_t bytes = gf_row_bytes(type, n_per_row);
  const bool checked = gf_block(type) > 1;
  const float limit = largest_value(type);
  for (int64_t r = 0; r < n_rows; ++r) {
    const float* row = x + r * n_per_row;
    if (checked && !all_within(row, n_per_row, limit)) return BAD_VALUE;
    gf_quantize_row(type, row, (unsigned char*)out + r * bytes, n_per_row);
  }
  return OK;
}

// The inverse: n_rows dense rows of the type to floats. Returns 0, 1 or 2 as above.
GF_EXPORT int32_t gf_dequantize_rows(int32_t type, const void* x, float* out, int64_t n_rows,
                                     int64_t n_per_row) {
  if (const int error = check(type, n_rows, n_per_row)) return error;
  const int64_t bytes = gf_row_bytes(type, n_per_row);
  for (int64_t r = 0; r < n_rows; ++r) {
    gf_dequantize_row(type, (const unsigned char*)x + r * bytes, out + r * n_per_row, n_per_row);
  }
  return OK;
}
