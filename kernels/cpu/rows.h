// Rows of any element type and stride, seen as runs of floats.
//
// Element-wise kernels work on runs of at most GF_RUN elements: read to floats (for dense f32 that
// is just a pointer), compute on vectors, write back. So each kernel has one inner loop, not one a
// type.
#pragma once

#include "cpu/kernel.h"
#include "quants/traits.h"

constexpr int64_t GF_RUN = 512;  // 2 KiB of floats: a few of them fit the first-level cache

inline bool gf_is_dense_f32(const gf_tensor& t) { return t.type == GF_F32 && gf_rows_dense(t); }

// One element of a plain type.
inline double gf_get(int32_t type, const char* p) {
  switch (type) {
    case GF_F32:
      return *reinterpret_cast<const float*>(p);
    case GF_F16:
      return gf_f16_to_f32(*reinterpret_cast<const uint16_t*>(p));
    case GF_BF16:
      return gf_bf16_to_f32(*reinterpret_cast<const uint16_t*>(p));
    case GF_F64:
      return *reinterpret_cast<const double*>(p);
    case GF_I8:
      return *reinterpret_cast<const int8_t*>(p);
    case GF_I16:
      return *reinterpret_cast<const int16_t*>(p);
    case GF_I32:
      return *reinterpret_cast<const int32_t*>(p);
    case GF_I64:
      return static_cast<double>(*reinterpret_cast<const int64_t*>(p));
  }
  return 0;
}

inline void gf_put(int32_t type, char* p, double x) {
  switch (type) {
    case GF_F32:
      *reinterpret_cast<float*>(p) = static_cast<float>(x);
      break;
    case GF_F16:
      *reinterpret_cast<uint16_t*>(p) = gf_f32_to_f16(static_cast<float>(x));
      break;
    case GF_BF16:
      *reinterpret_cast<uint16_t*>(p) = gf_f32_to_bf16(static_cast<float>(x));
      break;
    case GF_F64:
      *reinterpret_cast<double*>(p) = x;
      break;
    case GF_I8:
      *reinterpret_cast<int8_t*>(p) = static_cast<int8_t>(x);
      break;
    case GF_I16:
      *reinterpret_cast<int16_t*>(p) = static_cast<int16_t>(x);
      break;
    case GF_I32:
      *reinterpret_cast<int32_t*>(p) = static_cast<int32_t>(x);
      break;
    case GF_I64:
      *reinterpret_cast<int64_t*>(p) = static_cast<int64_t>(x);
      break;
  }
}

// Elements [i0, i0 + n) of a row as floats: the row itself if it is dense f32, otherwise `buffer`.
// For quantized types i0 and n are multiples of the block.
inline const float* gf_read_run(const gf_tensor& t, const char* row, int64_t i0, int64_t n,
                                float* buffer) {
  if (gf_is_dense_f32(t)) return reinterpret_cast<const float*>(row) + i0;
  if (gf_block(t.type) > 0 && gf_rows_dense(t)) {
    gf_dequantize_row(t.type, row + gf_row_bytes(t.type, i0), buffer, n);
    return buffer;
  }
  const char* p = row + i0 * t.nb[0];
  for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(gf_get(t.type, p + i * t.nb[0]));
  return buffer;
}

// Where to compute a run that gf_write_run then stores: in place when the row is dense f32.
inline float* gf_run_target(const gf_tensor& t, char* row, int64_t i0, float* buffer) {
  return gf_is_dense_f32(t) ? reinterpret_cast<float*>(row) + i0 : buffer;
}

inline void gf_write_run(const gf_tensor& t, char* row, int64_t i0, int64_t n, const float* y) {
  if (gf_is_dense_f32(t)) {
    float* const p = reinterpret_cast<float*>(row) + i0;
    if (p != y) std::memcpy(p, y, n * sizeof(float));
  } else if (gf_block(t.type) > 0 && gf_rows_dense(t)) {
    gf_quantize_row(t.type, y, row + gf_row_bytes(t.type, i0), n);
  } else {
    char* const p = row + i0 * t.nb[0];
    for (int64_t i = 0; i < n; ++i) gf_put(t.type, p + i * t.nb[0], y[i]);
  }
}

inline bool gf_is_contiguous(const gf_tensor& t) {
  int64_t dense = t.ne[0] * gf_element_bytes(t.type);
  if (!gf_rows_dense(t) || dense == 0) return false;
  for (int i = 1; i < GF_MAX_DIMS; ++i) {
    if (t.ne[i] > 1 && t.nb[i] != dense) return false;
    dense *= t.ne[i];
  }
  return true;
}

// All elements as a single row; only for contiguous tensors of a plain type.
inline gf_tensor gf_flat(gf_tensor t) {
  t.ne[0] = gf_nelements(t);
  t.ne[1] = t.ne[2] = t.ne[3] = 1;
  t.nb[0] = gf_element_bytes(t.type);
  return t;
}

// Calls f(row, i0, n) for this thread's share of all runs of t's rows. Runs start at multiples of
// GF_RUN, so neither they nor their values depend on the number of threads.
template <typename F>
inline void gf_for_runs(const gf_tensor& t, const gf_thread* th, F&& f) {
  const int64_t per_row = (t.ne[0] + GF_RUN - 1) / GF_RUN;
  const gf_range share = gf_split(gf_nrows(t) * per_row, th);
  for (int64_t k = share.begin; k < share.end; ++k) {
    const int64_t i0 = k % per_row * GF_RUN;
    const int64_t left = t.ne[0] - i0;
    f(gf_row_index(t, k / per_row), i0, left < GF_RUN ? left : GF_RUN);
  }
}
