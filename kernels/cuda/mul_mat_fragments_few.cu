// 2 to 16 columns times rows of quantized weights that lie as fragments (fragments.cuh), with the
// bits of mul_mat_columns.cu. The columns lie rounded in device memory, by columns_round.cu or by
// the kernel before (next_fragments.cuh).
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

// Of columns that the kernel before left: what their sums are multiplied by, a warp each.
template <class T>
__device__ __forceinline__ void find_scales(const T& t) {
  if (t.args.given.largest == nullptr || t.warp >= t.a.m) return;
  const float scale = t.args.given.power(t.warp);
  if (t.lane == 0) t.scales()[t.warp] = scale;
}

// m columns of so many eights, of which some have to be divided. x: where the first element is.
template <int ORDER, int COLUMNS>
__device__ __noinline__ void round_anew(const float* x, i64 x_row, int m, int eights,
                                        const float* scales, char* to) {
#pragma unroll 1
  for (int i = threadIdx.x; i < eights * m; i += kThreads) {
    const int column = i % m, eight = i / m;
    const float by = 1.0f / scales[column];
    const Eight32 v = ask_eight<ORDER>(x + column * x_row, eight * 8);
    *reinterpret_cast<uint4*>(to + ((eight / 4 * COLUMNS + column) * 4 + eight % 4) * 16) =
        rounded<f16, ORDER>({times(v.lo, by), times(v.hi, by)});
  }
  __syncthreads();
}
template <int ORDER, int COLUMNS, class T>
__device__ __forceinline__ void round_others(const T& t, char* to) {
  const GivenFragments& given = t.args.given;
  if (given.largest == nullptr) return;
  const bool other = t.lane < t.a.m && t.scales()[t.lane] != 1.0f;
  if (!__any_sync(kAllLanes, other)) return;
  round_anew<ORDER, COLUMNS>(t.o.x + t.first_unit * kUnit, given.x_row, t.a.m, t.span * (kUnit / 8),
                             t.scales(), to);
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
  find_scales(t);
  cluster_meet<BLOCKS>();  // barriers are made, and all blocks are there whose memory is written to
  barrier_wait(t.columns_here, 0);
  round_others<kOfHalves<W> ? FOURS_APART : EIGHTS_APART, COLUMNS>(t, x);
  BesideOne b = t.beside_first();
  t.multiply_all(x);
  if (t.parts > 1) {
    cluster_meet<BLOCKS>();
    t.add_parts(b);
  }
  t.leave_largest();
#endif
}
