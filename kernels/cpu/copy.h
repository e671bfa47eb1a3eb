// Copies of rows that keep every bit.
#pragma once

#include "cpu/rows.h"

template <typename T>
inline void gf_copy_elements(const char* from, int64_t from_step, char* to, int64_t to_step,
                             int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(to + i * to_step, from + i * from_step, sizeof(T));
  }
}

// The first n elements at `from`, in a tensor like x, to `to`, in a tensor like y, of the same
// type.
inline void gf_copy_row(const gf_tensor& x, const char* from, const gf_tensor& y, char* to,
                        int64_t n) {
  const int64_t size = gf_element_bytes(x.type);
  if (size == 0) {
    std::memcpy(to, from, gf_row_bytes(x.type, n));
  } else if (gf_rows_dense(x) && gf_rows_dense(y)) {
    std::memcpy(to, from, n * size);
  } else {
    switch (size) {
      case 1:
        gf_copy_elements<uint8_t>(from, x.nb[0], to, y.nb[0], n);
        break;
      case 2:
        gf_copy_elements<uint16_t>(from, x.nb[0], to, y.nb[0], n);
        break;
      case 4:
        gf_copy_elements<uint32_t>(from, x.nb[0], to, y.nb[0], n);
        break;
      default:
        gf_copy_elements<uint64_t>(from, x.nb[0], to, y.nb[0], n);
        break;
    }
  }
}

// y = x, same type and shape, this thread's share.
inline void gf_copy_tensor(const gf_tensor& x, const gf_tensor& y, const gf_thread* th) {
  if (gf_is_contiguous(x) && gf_is_contiguous(y)) {
    const int64_t size = gf_element_bytes(x.type);
    const gf_range r = gf_split_units(gf_nelements(x), GF_RUN, th);
    std::memcpy(static_cast<char*>(y.data) + r.begin * size,
                static_cast<const char*>(x.data) + r.begin * size, (r.end - r.begin) * size);
    return;
  }
  const gf_range rows = gf_split(gf_nrows(y), th);
  for (int64_t k = rows.begin; k < rows.end; ++k) {
    const gf_row r = gf_row_index(y, k);
    gf_copy_row(x, gf_row_ptr(x, r), y, gf_row_ptr(y, r), y.ne[0]);
  }
}
