// Columns for mul_mat_integers.cu: rounded to int8 in the way of int8_columns.cuh, times the
// weights of a norm if there is one, and then as 16-bit floats of the same values; and the turns of
// rotated heads.
#include "cuda/dependent.cuh"
#include "cuda/integers_weights.cuh"
#include "cuda/rope.cuh"

struct IntegerColumnsArgs {
  gf_tensor x;           // [c3, c2, m, k] f32, rows dense and aligned to 16 bytes
  const float* norm;     // weights of the norm, or null
  char* to;              // [groups][k / 64][n][64], pieces of 16 bytes swizzled
  float* numbers;        // [groups][k / 64][kColumnNumbers][2 blocks][n]
  float* scales;         // of each column after a norm, or null
  const i32* pos;        // of each column, for turns
  const float* factors;  // of the frequencies, or null
  float2* turns;         // [m, half_dim] cosine and sine; nothing if half_dim is zero
  RopeNumbers rope;
  float eps;
  int n;  // columns of a group
  int half_dim;
};

constexpr int kMostChunks = 256;  // a row may have at most 1 << 16 elements

// A block a column, a warp a chunk of 256 elements after the other.
__global__ void __launch_bounds__(1024)
    integer_columns(const __grid_constant__ IntegerColumnsArgs a) {
  __shared__ float squares[kMostChunks];
  launch_dependents();
  const int column = blockIdx.x, k = (int)a.x.ne[0], chunks = k / kChunkK;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int group = column / a.n, within = column % a.n, place = place_of_column(within);
  wait_for_previous();
  const float* const x = reinterpret_cast<const float*>(a.x.row(column)) + octet_at(lane);
  for (int chunk = warp; chunk < chunks; chunk += warps) {
    Octet v = ask_octet(x + chunk * kChunkK);
    if (a.norm) {
      const float* const norm = a.norm + chunk * kChunkK + octet_at(lane);
      const Octet by = {*reinterpret_cast<const float4*>(norm),
                        *reinterpret_cast<const float4*>(norm + 16)};
      const float sum = squares_of(v);
      if (lane == 0) squares[chunk] = sum;
      v = times(v, by);
    }
    const Int8Octet r = rounded(v);
    const auto [first, second] = r.sums();
    const int block = lane / 4, t = lane % 4;
    const i64 tile = (i64)group * (k / kTileK) + chunk * (kChunkK / kTileK) + block / 2;
    const HalfPairs lo = halves_of_bytes<true>(r.n.x), hi = halves_of_bytes<true>(r.n.y);
    const u32 words[4] = {lo.even, lo.odd, hi.even, hi.odd};
    char* const to = a.to + (tile * a.n + within) * (2 * kTileK) + t * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<u32*>(to + ((block % 2 * 4 + j) ^ (within % 8)) * 16) = words[j];
    }
    if (t < kColumnNumbers) {
      const float number = t == 0 ? r.d : (float)(t == 1 ? first + second : first);
      a.numbers[((tile * kColumnNumbers + t) * 2 + block % 2) * a.n + place] = number;
    }
  }
  for (int i = threadIdx.x; i < a.half_dim; i += blockDim.x) {
    const double angle = angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
    float2 at;
    turn(a.rope, __ldcg(a.pos + column) * angle, &at.y, &at.x);
    a.turns[column * a.half_dim + i] = at;
  }
  if (!a.norm) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    a.scales[column] = norm_scale_of([](int c) { return squares[c]; }, k, a.eps);
  }
}
