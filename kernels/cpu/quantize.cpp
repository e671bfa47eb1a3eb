// Whole rows to and from any type, for the quantizer, the loader and the tests. The caller threads
// it by handing each thread its own range of rows.
#include "cpu/abi.h"
#include "quants/traits.h"

namespace {

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
