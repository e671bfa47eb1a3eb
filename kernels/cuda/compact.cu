// Rows of 16-bit weights in their compact form (compact.cuh).
#include "cuda/compact.cuh"

// Mirrored by `compact_launch` in compact.py.
struct CompactArgs {
  const char* from;
  char* to;
  i32* too_large;  // becomes 1 where a weight is 2 or more in magnitude
  i64 from_step;   // bytes from row to row
  i64 rows;        // LAYOUT::ROWS at a time
  i64 units;       // of those, along them
};

template <class LAYOUT>
__global__ void __launch_bounds__(256) compact_rows(const __grid_constant__ CompactArgs a) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 all = a.rows / LAYOUT::ROWS * a.units;
  for (i64 at = blockIdx.x * 8ll + warp; at < all; at += gridDim.x * 8ll) {
    const i64 unit = at % a.units, row = at / a.units * LAYOUT::ROWS + LAYOUT::row(lane);
    const u32* const from =
        reinterpret_cast<const u32*>(a.from + row * a.from_step) + unit * LAYOUT::WORDS;
    u32* const to = reinterpret_cast<u32*>(a.to) + at * kKept;
    u32 words[kSet], every = 0;
#pragma unroll
    for (int i = 0; i < kSet; ++i) {
      words[i] = from[LAYOUT::word(lane, i)];
      every |= words[i];
    }
    if (every & kZeros) *a.too_large = 1;
#pragma unroll
    for (int i = 0; i < kSet - 1; ++i) {
      to[LAYOUT::kept(lane, i)] = words[i] | to_carry(words[kSet - 1], i);
    }
  }
}
