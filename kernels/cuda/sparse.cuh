// The active neurons of a layer: which rows they are, and how the blocks of a grid share them.
//
// Every block finds the active rows for itself: a bit a row in shared memory, then their positions
// in one ascending list. Of the list it takes an equal share. No grid depends on how many there
// are.
#pragma once

#include "cuda/pipeline.cuh"

__device__ __forceinline__ int rounded_up(int n, int to = 16) { return (n + to - 1) / to * to; }

// Mirrored by `Neurons.pack` in sparse.py.
struct Neurons {
  const float* idx;   // of every token; null: all neurons are active
  const i32* bucket;  // the neuron of each row, ascending; null: row r is neuron r
  const i32* skip;    // of each neuron: not 0 where another device computes it; null: none
  const u32* marks;   // a bit a row, made by `mark_rows`; null: look for yourself
  i64 idx_step;       // floats from token to token
  float threshold;
  i32 n_rows, m;
  i32 by_row;  // idx has an entry a row, not a neuron

  __device__ __forceinline__ int neuron(int r) const { return bucket ? __ldg(bucket + r) : r; }
  // Whether row r, of neuron j, has a score for token t that makes it active. NaN does. Read past
  // L1: this block may have started before the scores were written.
  __device__ __forceinline__ bool wants(int t, int r, int j) const {
    return idx == nullptr || !(__ldcg(idx + t * idx_step + (by_row ? r : j)) < threshold);
  }
  __device__ __forceinline__ bool skips(int j) const { return skip && __ldg(skip + j) != 0; }
  __device__ __forceinline__ int words() const { return (n_rows + 31) / 32; }
};

// Whether rows r[] are active for any token: many loads on their way at once.
template <int B>
__device__ __forceinline__ void any_active(const Neurons& a, const int (&r)[B], bool (&on)[B]) {
  int j[B];
  bool skipped[B] = {};
#pragma unroll
  for (int b = 0; b < B; ++b) j[b] = a.neuron(min(r[b], a.n_rows - 1));
  if (a.skip != nullptr) {
#pragma unroll
    for (int b = 0; b < B; ++b) skipped[b] = a.skips(j[b]);
  }
#pragma unroll
  for (int b = 0; b < B; ++b) on[b] = a.idx == nullptr;
  for (int t = 0; a.idx != nullptr && t < a.m; ++t) {
    const float* const scores = a.idx + t * a.idx_step;
    float score[B];
#pragma unroll
    for (int b = 0; b < B; ++b) {
      score[b] = __ldcg(scores + (a.by_row ? min(r[b], a.n_rows - 1) : j[b]));
    }
#pragma unroll
    for (int b = 0; b < B; ++b) on[b] |= !(score[b] < a.threshold);
  }
#pragma unroll
  for (int b = 0; b < B; ++b) on[b] = on[b] && !skipped[b] && r[b] < a.n_rows;
}

// One token's scores of all neurons: four rows a lane and all loads at once, for this stands
// between the scores and the first weights.
__device__ __forceinline__ void find_rows_at_once(const Neurons& a, u32* bits) {
  constexpr int B = 6;  // with 16 warps, 12288 rows
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int i = threadIdx.x / 32; i * 128 < a.n_rows; i += B * warps) {
    float4 score[B];
#pragma unroll
    for (int b = 0; b < B; ++b) {
      const int r = 128 * (i + b * warps) + 4 * lane;
      if (r + 3 < a.n_rows) {
        score[b] = __ldcg(reinterpret_cast<const float4*>(a.idx + r));
      } else {
        const auto at = [&](int k) { return __ldcg(a.idx + min(r + k, a.n_rows - 1)); };
        score[b] = {at(0), at(1), at(2), at(3)};
      }
    }
#pragma unroll
    for (int b = 0; b < B; ++b) {
      const int r = 128 * (i + b * warps) + 4 * lane;
      const auto on = [&](float x, int k) {
        return (u32)(r + k < a.n_rows && !(x < a.threshold)) << k;
      };
      u32 word = on(score[b].x, 0) | on(score[b].y, 1) | on(score[b].z, 2) | on(score[b].w, 3);
      word <<= lane % 8 * 4;
#pragma unroll
      for (int step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
      const int at = 4 * (i + b * warps) + lane / 8;
      if (lane % 8 == 0 && at < a.words()) bits[at] = word;
    }
  }
}

// The whole block: a bit a row into shared memory.
__device__ __forceinline__ void find_rows(const Neurons& a, u32* bits) {
  const int words = a.words();
  if (a.marks != nullptr) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) bits[i] = __ldcg(a.marks + i);
  } else if (a.idx && a.m == 1 && !a.bucket && !a.skip && ((u64)a.idx & 15) == 0) {
    find_rows_at_once(a, bits);
  } else {
    constexpr int B = 8;
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int i = threadIdx.x / 32; i < words; i += B * warps) {
      int r[B];
      bool on[B];
#pragma unroll
      for (int b = 0; b < B; ++b) r[b] = 32 * (i + b * warps) + lane;
      any_active(a, r, on);
#pragma unroll
      for (int b = 0; b < B; ++b) {
        const u32 word = __ballot_sync(kAllLanes, on[b]);
        if (lane == 0 && i + b * warps < words) bits[i + b * warps] = word;
      }
    }
  }
  __syncthreads();
}

// The whole block: calls put(i, row), from any thread, for the rows of part `part` of `parts`:
// those at places part, part + parts, ... of the list, of which row is number i. Returns how many
// rows are listed in all. The block meets at the end.
template <class Put>
__device__ __forceinline__ int share_rows(const u32* bits, int words, int part, int parts,
                                          Put put) {
  __shared__ int sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int each = (words + blockDim.x - 1) / blockDim.x;
  const int first = min((int)threadIdx.x * each, words), last = min(first + each, words);
  int own = 0;
  for (int i = first; i < last; ++i) own += __popc(bits[i]);
  int upto = own;  // of the warp, this thread included
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  int before = lane < (int)blockDim.x / 32 ? sums[lane] : 0, n = before;
  if (lane >= warp) before = 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    before += __shfl_xor_sync(kAllLanes, before, step);
    n += __shfl_xor_sync(kAllLanes, n, step);
  }
  const u32 place = before + upto - own;
  u32 i = place / parts, of = place - i * parts;  // place = i parts + of
  for (int at = first; at < last; ++at) {
    for (u32 word = bits[at]; word != 0; word &= word - 1) {
      if (of == (u32)part) put((int)i, 32 * at + __ffs(word) - 1);
      if (++of == (u32)parts) {
        of = 0;
        ++i;
      }
    }
  }
  __syncthreads();
  return n;
}
// Of n listed rows, how many a part has.
__device__ __forceinline__ int share_of(int n, int part, int parts) {
  return (n - part + parts - 1) / parts;
}

// x where it is above the cut, else 0. A NaN stays.
__device__ __forceinline__ float relu_of(float x, float cut = 0.0f) { return x <= cut ? 0.0f : x; }
