// Tiles of keys and values in shared memory, as the kernels for prompts have them.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/attention_mma.cuh"

constexpr int kThreads = 256;

__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i has the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_transposed(u32 (&x)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}

// Where 16-byte piece c of row r lies: pieces of one column are spread over the banks. Eight pieces
// cover them all; rows of 10 or 12 are apart from each other by themselves in part.
template <int PIECES>
__device__ __forceinline__ int swizzle(int r, int c) {
  constexpr int SWAPPED = PIECES % 8 == 0 ? 8 : PIECES % 4 == 0 ? 4 : 2;
  static_assert(PIECES % SWAPPED == 0, "pieces stay in their row");
  return r * PIECES + (c ^ (r / (8 / SWAPPED) & (SWAPPED - 1)));
}

// What a block's warps have of a tile of KEYS keys of HD dims: those of the first half have other
// keys than those of the second with the same rows, or, where sums of all dims would not fit into a
// thread's registers, all keys and other dims of the values.
template <int HD, int KEYS>
struct Share {
  static constexpr bool kByDims = HD > 256;
  static constexpr int kMine = kByDims ? KEYS : KEYS / 2;  // keys
  static constexpr int kDims = kByDims ? HD / 2 : HD;      // of the values
  static constexpr int kPages = (KEYS + kPage - 1) / kPage;
  static_assert(!kByDims || kPages == 1, "a warp's keys have one page");

  static __device__ __forceinline__ int first_key(int half) { return kByDims ? 0 : half * kMine; }
  static __device__ __forceinline__ int first_dim(int half) { return kByDims ? half * kDims : 0; }
};

// Keys [j0, j0 + KEYS) of a sequence, j0 % KEYS == 0; zeros where nobody sees any, as memory there
// may hold NaN. pages: of the tile, -1 where there is none.
template <class C, int PIECES, int KEYS>
__device__ __forceinline__ void load_tile(uint4* tile, const char* base, i64 stride,
                                          const int (&pages)[(KEYS + kPage - 1) / kPage], int j0,
                                          Span seen) {
  constexpr int OF_PAGE = KEYS < kPage ? KEYS : kPage;
  constexpr bool EVEN = (PIECES & (PIECES - 1)) == 0;
  constexpr int ACROSS = EVEN ? PIECES : 4;  // pieces of a row at a time
  constexpr int ROWS = kThreads / ACROSS;    // of the tile at a time
  static_assert(OF_PAGE % ROWS == 0, "they have one page");
  const int c0 = threadIdx.x % ACROSS, row0 = threadIdx.x / ACROSS;
#pragma unroll
  for (int p = 0; p < KEYS / OF_PAGE; ++p) {
    const int in_page = KEYS < kPage ? j0 % kPage + row0 : row0;
    const char* const page = base + ((i64)max(pages[p], 0) * kPage + in_page) * stride;
#pragma unroll
    for (int i = 0; i < OF_PAGE / ROWS; ++i) {
      const int r = p * OF_PAGE + i * ROWS + row0;
      const bool there =
          pages[p] >= 0 && (u32)(j0 + r - seen.first) <= (u32)(seen.last - seen.first);
      const char* const row = page + i * ROWS * stride;
#pragma unroll
      for (int k = 0; k < PIECES; k += ACROSS) {
        const int c = c0 + k;
        if (PIECES % ACROSS != 0 && c >= PIECES) continue;
        uint4* const to = tile + swizzle<PIECES>(r, c);
        if constexpr (CacheRow<C>::kPlain) {
          copy16_or_zeros(shared_address(to), row + 16 * c, there);
        } else {
          *to = there ? CacheRow<C>::read8(row, 8 * c) : uint4{};
        }
      }
    }
  }
}

// Keys that some row of a warp sees, and those that all of them see.
struct Range {
  int low, high, low_all, high_all;
};
