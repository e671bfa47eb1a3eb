// Quantized weights to rows of 16-bit floats, for the matrix products that read those.
//
// A run of blocks is brought into shared memory 16 bytes at a time, whatever the size of a block,
// and leaves as packs of eight elements.
#include "cuda/eight.cuh"

constexpr int kThreads = 256;
constexpr int kElements = 8192;  // of a run: every type's bytes are then a multiple of 16

struct DequantizeArgs {
  char* to;          // 16-byte aligned, as is `from`
  const char* from;  // rows of blocks without gaps
  i64 n, rows;       // elements of a row; whole eights
  i64 step;          // bytes from row to row, a multiple of 16 where there are several
};

template <class W, class T>
__global__ void __launch_bounds__(kThreads, 5)
    dequantize(const __grid_constant__ DequantizeArgs a) {
  constexpr int kBytes = kElements / W::QK * (int)sizeof(W);
  static_assert(kBytes % 16 == 0, "runs start at multiples of 16 bytes");
  __shared__ alignas(16) char run[kBytes];
  const i64 first = (i64)blockIdx.x * kElements;
  const int n = (int)min(a.n - first, (i64)kElements);
  const int nbytes = n / W::QK * (int)sizeof(W), rest = nbytes & ~15;
  for (i64 row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const char* const from = a.from + row * a.step + (i64)blockIdx.x * kBytes;
    for (int i = threadIdx.x * 16; i + 16 <= nbytes; i += kThreads * 16) {
      *reinterpret_cast<uint4*>(run + i) = __ldcs(reinterpret_cast<const uint4*>(from + i));
    }
    if (threadIdx.x < nbytes - rest) run[rest + threadIdx.x] = from[rest + threadIdx.x];
    __syncthreads();
    uint4* const to = reinterpret_cast<uint4*>(a.to) + (row * a.n + first) / 8;
#pragma unroll 4
    for (int p = threadIdx.x; p < n / 8; p += kThreads) {
      const W* const block = reinterpret_cast<const W*>(run) + p / (W::QK / 8);
      to[p] = rounded<T, is_wide<W>()>(eight(block, p % (W::QK / 8)));
    }
    __syncthreads();
  }
}
