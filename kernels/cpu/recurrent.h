// What kernels with a state a sequence share: which rows belong to one, and the shares of threads.
#pragma once

#include "cpu/kernel.h"
#include "cpu/vmath.h"

// Neighbouring rows with one slot: a sequence's next tokens. goes_on: from the slot's state, which
// is not looked at before position 0.
struct gf_sequence {
  int64_t begin, end, slot;
  bool goes_on;
};

// Calls f(sequence, item) for this thread's share of n_items pieces of work of every sequence, and
// zeros the rows of `dst` that belong to none.
template <typename F>
inline void gf_for_sequences(const gf_tensor& pos, const gf_tensor& slot, int64_t n_tok,
                             int64_t n_slots, const gf_tensor& dst, int64_t row_bytes,
                             int64_t row_stride, int64_t n_items, gf_thread* th, F&& f) {
  const auto* const slots = static_cast<const int32_t*>(slot.data);
  const auto* const at = static_cast<const int32_t*>(pos.data);
  int64_t item = gf_steal(th), first = 0;
  for (int64_t begin = 0, end; begin < n_tok; begin = end) {
    for (end = begin + 1; end < n_tok && slots[end] == slots[begin];) ++end;
    const int64_t s = slots[begin];
    if (s < 0 || s >= n_slots) {
      if (th->ith > 0) continue;
      for (int64_t i = begin; i < end; ++i) {
        std::memset(static_cast<char*>(dst.data) + i * row_stride, 0, row_bytes);
      }
      continue;
    }
    for (; item < first + n_items; item = gf_steal(th)) {
      f(gf_sequence{begin, end, s, at[begin] != 0}, item - first);
    }
    first += n_items;
  }
}

// ln(1 + e^x) without overflow.
inline float gf_softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Row i of a matrix of floats.
inline const float* gf_float_row(const gf_tensor& t, int64_t i) {
  return reinterpret_cast<const float*>(static_cast<const char*>(t.data) + i * t.nb[1]);
}

// Columns of a head's state that are taken together: sums of so many stay in registers from row to
// row, and 128 rows of them take half of a first-level cache.
constexpr int GF_STATE_VECTORS = VL < 16 ? 4 : 2;
constexpr int64_t GF_STATE_COLUMNS = GF_STATE_VECTORS * VL;

// Calls f(column, columns, vectors) for the columns [begin, end) of a state: as many whole blocks
// as there are, then vectors one by one.
template <typename F>
inline void gf_for_columns(int64_t begin, int64_t end, F&& f) {
  int64_t c = begin;
  for (; c + GF_STATE_COLUMNS <= end; c += GF_STATE_COLUMNS) {
    f(c, GF_STATE_COLUMNS, std::integral_constant<int, GF_STATE_VECTORS>());
  }
  for (; c < end; c += VL) f(c, end - c < VL ? end - c : VL, std::integral_constant<int, 1>());
}
