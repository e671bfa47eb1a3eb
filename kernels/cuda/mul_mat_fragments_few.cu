// 2 to 16 columns times rows of quantized weights that lie as fragments (fragments.cuh), with the
// bits of mul_mat_columns.cu. The columns lie rounded in device memory (columns_round.cu).
//
// The tensor cores' product has eight columns anyway. All columns of the parts of k that a block
// has are in its shared memory. Where those of all parts are too many, blocks of a cluster have
// some each, and one of them adds a tile's.
#include "cuda/tile_fragments.cuh"

#if __CUDA_ARCH__ >= 900

constexpr int kPiece = 16384;  // bytes that are copied at once

// Of the parts that the block has.
template <class T>
__device__ __forceinline__ void bring_columns(const T& t, char* to) {
  const int bytes = t.span * T::UNIT_STEP;
  const char* const from = t.a.x + (i64)t.first_unit * T::UNIT_STEP;
  expect_bytes(t.columns_here, bytes);
#pragma unroll 1
  for (int at = 0; at < bytes; at += kPiece) {
    copy_bulk(to + at, from + at, min(kPiece, bytes - at), t.columns_here);
  }
}

template <int BLOCKS>
__device__ __forceinline__ void meet() {
  if (BLOCKS > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}
#endif

template <int KIND, class W, bool WHOLE, int UNITS, int COLUMNS, int BLOCKS>
__global__ void __launch_bounds__(kThreads, 1) GF_CLUSTER(BLOCKS)
    mul_mat_fragments_few(const __grid_constant__ FragmentArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  TileFragments<KIND, W, WHOLE, UNITS, COLUMNS, BLOCKS> t(args, shared);
  t.begin();
  wait_for_previous();
  char* const x = shared + args.o.x_at;
  if (threadIdx.x == 0) bring_columns(t, x);
  t.request_some(args.early, args.o.c.w_stages);
  meet<BLOCKS>();  // barriers are made, and all blocks are there whose memory is written to
  barrier_wait(t.columns_here, 0);
  BesideOne b = t.beside_first();
  t.multiply_all(x);
  if (t.parts == 1) return;
  meet<BLOCKS>();
  t.add_parts(b);
#endif
}
