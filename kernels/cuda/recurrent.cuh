// What kernels with a state a sequence share: which rows belong to one.
#pragma once

#include "cuda/common.cuh"

struct Sequences {
  const i32 *pos, *slot;
  i32 n_tok, n_slots;

  __device__ __forceinline__ bool known(int i) const { return (u32)slot[i] < (u32)n_slots; }
  // Whether a sequence's rows begin at row i.
  __device__ __forceinline__ bool begins(int i) const { return i == 0 || slot[i] != slot[i - 1]; }
  // Where the rows of the sequence that begins at row i end: they are neighbours.
  __device__ __forceinline__ int end(int i) const {
    int low = i + 1, high = n_tok;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (slot[middle] == slot[i]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// A head's state [rows][columns] in registers: a warp has 8 columns, of which lane l holds, of
// column l / 4, every fourth row from l % 4 on. R: at least rows / 4.
template <int R>
struct HeadState {
  float v[R];

  __device__ __forceinline__ void load(const float* state, int rows, int columns, int column,
                                       int part, bool goes_on) {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int row = 4 * i + part;
      v[i] = goes_on && row < rows && column < columns ? state[row * columns + column] : 0.0f;
    }
  }
  __device__ __forceinline__ void store(float* state, int rows, int columns, int column,
                                        int part) const {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int row = 4 * i + part;
      if (row < rows && column < columns) state[row * columns + column] = v[i];
    }
  }
  // What each of the four lanes of a column found, added up.
  static __device__ __forceinline__ float joined(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
  }
};
