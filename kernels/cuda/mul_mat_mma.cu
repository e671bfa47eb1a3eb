// mul_mat for 9 to 64 columns and quantized weights, which are read once and become halves in
// registers, where the tensor cores want them.
//
// A block of eight warps multiplies 128 weight rows with all columns, over a part of k: four groups
// of 32 rows, times the two halves of each chunk of 256 elements. Chunks of weights, as they are in
// memory, and of columns pass through a ring of stages in shared memory. Sums of the parts of k lie
// apart and are added by the kernels at the end, always in one order, so a result does not depend
// on the other columns.
//
// Lane l of a warp holds of rows l / 4 and l / 4 + 8 the eight elements 8 (l % 4) and following of
// every 32. The instruction means other elements by those places, but a sum may be taken in any
// order as long as the columns use the same one.
#include "cuda/async_copy.cuh"
#include "cuda/functions.cuh"
#include "cuda/mma.cuh"
#include "cuda/mul_mat_mma.cuh"

constexpr int kThreads = 256, kRows = 128, kGroup = 32, kChunk = 256;
constexpr int kColumnBytes = 2 * kChunk + 64;  // of a stage; the gap keeps lanes on different banks

struct MmaArgs {
  const char *w, *x;  // n rows w_row bytes apart; m dense rows of k halves
  float* parts;       // [gridDim.y][m][n]
  i64 w_row;
  int n, m, chunks, stages;  // chunks of a row
};

// How a chunk of a row lies in a stage. Where its bytes are no multiple of 16 it may start between
// two such multiples: everything it touches is copied, and it starts `offset` bytes later.
template <class W>
struct Chunk {
  static constexpr int BYTES = kChunk / W::QK * (int)sizeof(W);
  static constexpr bool ALIGNED = BYTES % 16 == 0;
  static constexpr int COPIED = ALIGNED ? BYTES : (BYTES + 15 + 15) / 16 * 16;
  static constexpr int STRIDE = COPIED / 16 % 2 ? COPIED : COPIED + 16;  // odd, against conflicts

  static __device__ __forceinline__ const char* start(const MmaArgs& a, i64 row, int chunk) {
    return a.w + row * a.w_row + (i64)chunk * BYTES;
  }
  static __device__ __forceinline__ int offset(const char* start) {
    return ALIGNED ? 0 : (int)(reinterpret_cast<u64>(start) & 15);
  }
};

template <class W, int NT>
__device__ __forceinline__ void fill(const MmaArgs& a, char* stage, i64 row0, int chunk) {
  constexpr int PIECES = Chunk<W>::COPIED / 16;
  const u32 to = shared_address(stage);
  const char* const end = a.w + (a.n - 1) * a.w_row + (i64)a.chunks * Chunk<W>::BYTES;
  for (int i = threadIdx.x; i < kRows * PIECES; i += kThreads) {
    const int row = i / PIECES, piece = i % PIECES;
    if (row0 + row >= a.n) break;
    const char* const start = Chunk<W>::start(a, row0 + row, chunk);
    const char* const from = start - Chunk<W>::offset(start) + 16 * piece;
    if (Chunk<W>::ALIGNED || from < end) {
      copy16_async(to + row * Chunk<W>::STRIDE + 16 * piece, from);
    }
  }
  const u32 columns = to + kRows * Chunk<W>::STRIDE;
  const i64 row_bytes = (i64)a.chunks * kChunk * 2;
  for (int i = threadIdx.x; i < 8 * NT * (kChunk / 8); i += kThreads) {
    const int column = i / (kChunk / 8), piece = i % (kChunk / 8);
    if (column >= a.m) break;
    copy16_async(columns + column * kColumnBytes + 16 * piece,
                 a.x + column * row_bytes + (i64)chunk * kChunk * 2 + 16 * piece);
  }
}

template <class W, int NT>
__global__ void __launch_bounds__(kThreads, 2) mul_mat_mma(const __grid_constant__ MmaArgs a) {
  extern __shared__ uint4 memory[];
  constexpr int STAGE = kRows * Chunk<W>::STRIDE + 8 * NT * kColumnBytes;
  constexpr int PIECES = W::QK / 8;  // of a block
  char* const ring = reinterpret_cast<char*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp % 4 * kGroup, half = warp / 4;
  const i64 row0 = (i64)blockIdx.x * kRows;
  const int begin = a.chunks * blockIdx.y / gridDim.y;
  const int end = a.chunks * (blockIdx.y + 1) / gridDim.y;

  float sums[2][NT][4] = {};
  for (int s = 0; s < a.stages - 1; ++s) {
    if (begin + s < end) fill<W, NT>(a, ring + s * STAGE, row0, begin + s);
    copies_end();
  }
  int at = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    if (a.stages == 3) {
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();  // this chunk is there, and nobody reads the stage that is filled next
    const int ahead = chunk + a.stages - 1;
    const int next = at == 0 ? a.stages - 1 : at - 1;
    if (ahead < end) fill<W, NT>(a, ring + next * STAGE, row0, ahead);
    copies_end();
    const char* const stage = ring + at * STAGE;
    const char* const columns = stage + kRows * Chunk<W>::STRIDE;
    const W* rows[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = group + i / 2 * 16 + i % 2 * 8 + g;
      rows[i / 2][i % 2] = reinterpret_cast<const W*>(
          stage + row * Chunk<W>::STRIDE + Chunk<W>::offset(Chunk<W>::start(a, row0 + row, chunk)));
    }
#pragma unroll
    for (int step = 0; step < kChunk / 64; ++step) {
      const int block32 = half * (kChunk / 64) + step, piece = block32 * 4 + t;
      Halves w[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i / 2][i % 2] = halves(rows[i / 2][i % 2] + piece / PIECES, piece % PIECES);
      }
#pragma unroll
      for (int c = 0; c < NT; ++c) {
        const uint4 x = *reinterpret_cast<const uint4*>(columns + (8 * c + g) * kColumnBytes +
                                                        block32 * 64 + t * 16);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Halves &lo = w[r][0], &hi = w[r][1];
          mma<f16>(sums[r][c], {lo.v[0], hi.v[0], lo.v[1], hi.v[1]}, x.x, x.y);
          mma<f16>(sums[r][c], {lo.v[2], hi.v[2], lo.v[3], hi.v[3]}, x.z, x.w);
        }
      }
    }
    at = at + 1 == a.stages ? 0 : at + 1;
  }

  // Both halves of the chunks together.
  copies_wait<0>();
  __syncthreads();
  float* const other = reinterpret_cast<float*>(ring) + (warp % 4 * 32 + lane);
  float* const mine = &sums[0][0][0];
  if (half == 1) {
#pragma unroll
    for (int i = 0; i < 8 * NT; ++i) other[128 * i] = mine[i];
  }
  __syncthreads();
  if (half == 1) return;
#pragma unroll
  for (int i = 0; i < 8 * NT; ++i) {
    const int row = group + i / (4 * NT) * 16 + i / 2 % 2 * 8 + g;
    const int column = i / 4 % NT * 8 + 2 * t + i % 2;
    const float sum = mine[i] + other[128 * i];
    if (row0 + row < a.n && column < a.m) {
      a.parts[((i64)blockIdx.y * a.m + column) * a.n + row0 + row] = sum;
    }
  }
}

struct SumArgs {
  gf_tensor r;            // [.., m, n] f32 with the result's lengths, or null
  float* dst;             // [m, n]
  const float* parts[2];  // [count][m, n]; the second is up's, or null
  const float* scales;    // of each of the m rows
  i64 m, n, count;
};

__device__ __forceinline__ float sum_of(const float* parts, i64 at, const SumArgs& a) {
  float sum = 0.0f;
  for (i64 s = 0; s < a.count; ++s) sum += parts[s * a.m * a.n + at];
  return sum;
}

// dst = scale * sum of the parts + r, or silu(gate) * up. blockIdx.y counts rows.
__global__ void __launch_bounds__(kThreads) sum_parts(const __grid_constant__ SumArgs a) {
  const i64 i = (i64)blockIdx.x * kThreads + threadIdx.x, row = blockIdx.y, at = row * a.n + i;
  if (i >= a.n) return;
  const float scale = a.scales[row];
  float y = sum_of(a.parts[0], at, a) * scale;
  if (a.parts[1]) y = silu()(y) * (sum_of(a.parts[1], at, a) * scale);
  if (a.r.data) y += *reinterpret_cast<const float*>(a.r.row(row) + i * a.r.nb[0]);
  a.dst[at] = y;
}
