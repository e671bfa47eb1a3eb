// What every kernel file includes: how a kernel is declared, how it reads its parameters and how
// the rows of an op are shared out among threads.
#pragma once

#include <atomic>
#include <cstring>
#include <thread>

#include "cpu/abi.h"
#include "cpu/intrinsics.h"
#include "cpu/relax.h"

// The kernel of op `name`, its INIT phase (all threads, then a barrier, then the kernel), the
// number of scratch bytes it wants when run by n_threads threads, and whether it can take these
// operands (only for kernels that do not take every type or layout: an absent function means yes).
#define GF_KERNEL(name) \
  GF_EXPORT void gf_op_##name([[maybe_unused]] const gf_op* op, [[maybe_unused]] gf_thread* th)
#define GF_KERNEL_INIT(name) \
  GF_EXPORT void gf_init_##name([[maybe_unused]] const gf_op* op, [[maybe_unused]] gf_thread* th)
#define GF_KERNEL_SCRATCH(name)                                         \
  GF_EXPORT int64_t gf_scratch_##name([[maybe_unused]] const gf_op* op, \
                                      [[maybe_unused]] int32_t n_threads)
#define GF_KERNEL_SUPPORTS(name) \
  GF_EXPORT int32_t gf_supports_##name([[maybe_unused]] const gf_op* op)

// Which operands may be in the interleaved layout (GF_PACKED), one bit each; none without this.
#define GF_KERNEL_PACKED(name, bits) \
  GF_EXPORT int32_t gf_packed_##name(void) { return bits; }

#if defined(_MSC_VER)
#define GF_RESTRICT __restrict
#define GF_INLINE __forceinline
#elif defined(GF_CHECKED)
// Under a sanitizer as the compiler likes: with a check at every access of everything inlined, the
// products' templates take it ten minutes a file.
#define GF_INLINE inline
#else
#define GF_RESTRICT __restrict__
#define GF_INLINE inline __attribute__((always_inline))
#endif

// The parameter block as the op's own struct; fields in the order the OpSpec declares them.
template <typename Params>
inline Params gf_params(const gf_op* op) {
  static_assert(sizeof(Params) <= GF_PARAM_BYTES, "parameter block too large");
  Params p;
  std::memcpy(&p, op->params, sizeof(p));
  return p;
}

// A half-open range of rows, blocks or elements.
struct gf_range {
  int64_t begin, end;
};

// The contiguous share of thread th in n pieces of work.
inline gf_range gf_split(int64_t n, const gf_thread* th) {
  return {n * th->ith / th->nth, n * (th->ith + 1) / th->nth};
}

// The same with borders at multiples of `unit`, so that threads do not share cache lines or tiles.
inline gf_range gf_split_units(int64_t n, int64_t unit, const gf_thread* th) {
  const gf_range r = gf_split((n + unit - 1) / unit, th);
  return {r.begin * unit, r.end * unit < n ? r.end * unit : n};
}

// Takes the next piece of work from the counter all threads of the op share. Which thread computes
// a piece must not change its value.
inline int64_t gf_steal(gf_thread* th, int64_t n = 1) {
  return reinterpret_cast<std::atomic<int64_t>*>(th->next)->fetch_add(n, std::memory_order_relaxed);
}

// Waits until all th->nth threads of the op have called it; what they wrote before, all may then
// read. It spins: for phases of microseconds, where another op and its barriers would cost more.
// Either all threads of an op call it or none, each as often as the others.
inline void gf_meet(gf_thread* th) {
  if (th->nth == 1) return;
  auto* const arrived = reinterpret_cast<std::atomic<int32_t>*>(&th->barrier->arrived);
  auto* const round = reinterpret_cast<std::atomic<int32_t>*>(&th->barrier->round);
  const int32_t seen = round->load(std::memory_order_acquire);
  if (arrived->fetch_add(1, std::memory_order_acq_rel) + 1 == th->nth) {
    arrived->store(0, std::memory_order_relaxed);
    round->fetch_add(1, std::memory_order_release);
    return;
  }
  for (int turn = 0; round->load(std::memory_order_acquire) == seen; ++turn) {
    if (turn < 1000) {
      gf_relax();
    } else {
      std::this_thread::yield();  // there are fewer processors than threads
    }
  }
}

inline int64_t gf_nelements(const gf_tensor& t) { return t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]; }
inline int64_t gf_nrows(const gf_tensor& t) { return t.ne[1] * t.ne[2] * t.ne[3]; }

// Indices of a row in dimensions 1..3.
struct gf_row {
  int64_t i1, i2, i3;
};

inline gf_row gf_row_index(const gf_tensor& t, int64_t r) {
  const int64_t per3 = t.ne[1] * t.ne[2];
  const int64_t i3 = r / per3;
  const int64_t i2 = (r - i3 * per3) / t.ne[1];
  return {r - i3 * per3 - i2 * t.ne[1], i2, i3};
}

// Address of the first element of a row.
inline char* gf_row_ptr(const gf_tensor& t, gf_row r) {
  return static_cast<char*>(t.data) + r.i1 * t.nb[1] + r.i2 * t.nb[2] + r.i3 * t.nb[3];
}
inline char* gf_row_ptr(const gf_tensor& t, int64_t r) { return gf_row_ptr(t, gf_row_index(t, r)); }

// Rows beyond the tensor's own count wrap around: ggml's broadcasting.
inline char* gf_row_ptr_mod(const gf_tensor& t, gf_row r) {
  return gf_row_ptr(t, {r.i1 % t.ne[1], r.i2 % t.ne[2], r.i3 % t.ne[3]});
}

// Bytes of one plain element, 0 for quantized types.
inline int64_t gf_element_bytes(int32_t type) {
  switch (type) {
    case GF_I8:
      return 1;
    case GF_F16:
    case GF_BF16:
    case GF_I16:
      return 2;
    case GF_F32:
    case GF_I32:
      return 4;
    case GF_I64:
    case GF_F64:
      return 8;
    default:
      return 0;
  }
}

// True when the innermost dimension is dense (quantized rows always are).
inline bool gf_rows_dense(const gf_tensor& t) {
  return t.ne[0] <= 1 || gf_element_bytes(t.type) == 0 || t.nb[0] == gf_element_bytes(t.type);
}
