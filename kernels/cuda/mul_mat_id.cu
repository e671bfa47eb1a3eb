// mul_mat_id of many pairs (row, id): each row of x times the matrices that its ids name, the
// experts of a layer. The pairs are sorted by expert, and the tensor cores multiply 64 weight rows
// of an expert with a tile of its pairs.
#include "cuda/mma.cuh"
#include "cuda/mul_mat_id.cuh"

// Where the pairs of an expert lie in `pairs`.
struct Columns {
  i32 expert, begin, end, unused;
};

struct SortArgs {
  IdArgs id;
  i32* pairs;      // [n_pairs] by expert
  Columns* tiles;  // of `width` pairs of one expert each
  i32* n_tiles;
  i32 width;
};

constexpr int kSorters = 1024;

// Sums of what the threads before this one have; `total` is that of all.
__device__ __forceinline__ int sum_before(int x, int& total) {
  __shared__ int warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < 32; ++i) {
    if (i < warp) before += warps[i];
    total += warps[i];
  }
  return before + sum - x;
}

// One block; an expert a thread. The order of an expert's pairs is not determined, and does not
// matter: each is a column of its own. Results of unknown experts are zeros.
__global__ void __launch_bounds__(kSorters) mul_mat_id_sort(const __grid_constant__ SortArgs a) {
  __shared__ i32 counts[kSorters];
  const i64 n_pairs = a.id.dst.ne[1] * a.id.dst.ne[2];
  const int n_experts = (int)a.id.w.ne[2], e = threadIdx.x;
  counts[e] = 0;
  __syncthreads();
  for (i64 p = e; p < n_pairs; p += kSorters) {
    const i32 id = id_of(a.id, p);
    if ((u32)id < (u32)n_experts) {
      atomicAdd(counts + id, 1);
    } else {
      float* const out = result_of(a.id, p);
      for (i64 i = 0; i < a.id.w.ne[1]; ++i) out[i] = 0.0f;
    }
  }
  __syncthreads();
  const int mine = counts[e];
  int total;
  const int begin = sum_before(mine, total);
  const int first = sum_before((mine + a.width - 1) / a.width, total);
  for (int i = 0; i * a.width < mine; ++i) {
    a.tiles[first + i] = {e, begin + i * a.width, min(begin + (i + 1) * a.width, begin + mine), 0};
  }
  if (e == 0) *a.n_tiles = total;
  __syncthreads();
  counts[e] = begin;
  __syncthreads();
  for (i64 p = e; p < n_pairs; p += kSorters) {
    const i32 id = id_of(a.id, p);
    if ((u32)id < (u32)n_experts) a.pairs[atomicAdd(counts + id, 1)] = (i32)p;
  }
}

struct TileArgs {
  IdArgs id;
  const i32* pairs;
  const Columns* tiles;
  const i32* n_tiles;
  const char* x;        // dense rows of T
  const float* scales;  // of each of them, or null
};

constexpr int kRows = 64, kDepth = 64, kStride = kDepth + 8;  // halves; the gap keeps lanes apart
constexpr int kPieces = kDepth / 8;

// 64 weight rows, 16 a warp, times a tile of 8 NT pairs. blockIdx.y counts tiles.
template <class W, class T, int NT>
__global__ void __launch_bounds__(128) mul_mat_id_tile(const __grid_constant__ TileArgs a) {
  __shared__ __align__(16) gf_u16 ws[2][kRows * kStride], xs[2][8 * NT * kStride];
  constexpr int W_EACH = kRows * kPieces / 128, X_EACH = 8 * NT * kPieces / 128;
  if ((int)blockIdx.y >= *a.n_tiles) return;
  const Columns tile = a.tiles[blockIdx.y];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int columns = tile.end - tile.begin;
  const i64 row0 = (i64)blockIdx.x * kRows, n = a.id.w.ne[1], k = a.id.w.ne[0];
  const i64 used = a.id.dst.ne[1], n_pieces = k / 8;

  const char* w[W_EACH];
  const char* x[X_EACH];
#pragma unroll
  for (int i = 0; i < W_EACH; ++i) {
    const i64 row = row0 + (threadIdx.x + 128 * i) / kPieces;
    w[i] = row < n ? a.id.w.row(row, tile.expert, 0) : nullptr;
  }
#pragma unroll
  for (int i = 0; i < X_EACH; ++i) {
    const int column = (threadIdx.x + 128 * i) / kPieces;
    x[i] = nullptr;
    if (column < columns) {
      const i64 pair = a.pairs[tile.begin + column];
      x[i] = a.x + (a.id.own_rows ? pair : pair / used) * k * 2;
    }
  }
  const int piece = threadIdx.x % kPieces;  // 128 threads are whole rows of pieces
  uint4 w_next[W_EACH], x_next[X_EACH];
  const auto fetch = [&](i64 p0) {
    const i64 p = p0 + piece;
#pragma unroll
    for (int i = 0; i < W_EACH; ++i) {
      w_next[i] = make_uint4(0, 0, 0, 0);
      if (w[i] && p < n_pieces) w_next[i] = Expert<W>::template as<T>(w[i], p);
    }
#pragma unroll
    for (int i = 0; i < X_EACH; ++i) {
      x_next[i] = make_uint4(0, 0, 0, 0);
      if (x[i] && p < n_pieces) x_next[i] = *reinterpret_cast<const uint4*>(x[i] + 16 * p);
    }
  };
  float sums[NT][4] = {};
  fetch(0);
  int at = 0;
  for (i64 p0 = 0; p0 < n_pieces; p0 += kPieces, at ^= 1) {
#pragma unroll
    for (int i = 0; i < W_EACH; ++i) {
      const int row = (threadIdx.x + 128 * i) / kPieces;
      *reinterpret_cast<uint4*>(ws[at] + row * kStride + 8 * piece) = w_next[i];
    }
#pragma unroll
    for (int i = 0; i < X_EACH; ++i) {
      const int column = (threadIdx.x + 128 * i) / kPieces;
      *reinterpret_cast<uint4*>(xs[at] + column * kStride + 8 * piece) = x_next[i];
    }
    __syncthreads();  // and nobody is two steps behind, so the other half may be written next
    if (p0 + kPieces < n_pieces) fetch(p0 + kPieces);
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      const auto word = [&](const gf_u16* rows, int row, int e) {
        return *reinterpret_cast<const u32*>(rows + row * kStride + d + e);
      };
      const int row = warp * 16 + g;
      const u32 af[4] = {word(ws[at], row, 2 * t), word(ws[at], row + 8, 2 * t),
                         word(ws[at], row, 2 * t + 8), word(ws[at], row + 8, 2 * t + 8)};
#pragma unroll
      for (int c = 0; c < NT; ++c) {
        mma<T>(sums[c], af, word(xs[at], 8 * c + g, 2 * t), word(xs[at], 8 * c + g, 2 * t + 8));
      }
    }
  }
#pragma unroll
  for (int c = 0; c < NT; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * c + 2 * t + i;
      if (column >= columns) continue;
      const i64 pair = a.pairs[tile.begin + column];
      const float scale = a.scales ? a.scales[a.id.own_rows ? pair : pair / used] : 1.0f;
      float* const out = result_of(a.id, pair);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const i64 row = row0 + warp * 16 + g + 8 * h;
        if (row < n)
          out[row] = fmaf(sums[c][2 * h + i], scale, bias_of(a.id.bias, tile.expert, row));
      }
    }
  }
}
