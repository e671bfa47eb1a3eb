// What the products of many pairs (row, id) with experts begin with: the pairs sorted by expert,
// and their rows as 16-bit floats in tiles that bulk copies bring to expert_columns.cu.
#include "cuda/dependent.cuh"
#include "cuda/expert_sort.cuh"
#include "cuda/float_columns.cuh"

constexpr int kSorters = 1024;

struct ExpertSortArgs {
  gf_tensor ids;
  i32* pairs;         // [n_pairs] by expert
  ExpertSlot* slots;  // [n_pairs]
  ExpertTile* tiles;
  i32* n_tiles;
  i32 n_experts;
};

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
  int mine = warps[lane];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, mine, step);
    if (lane >= step) mine += other;
  }
  total = __shfl_sync(kAllLanes, mine, 31);
  const int before = __shfl_sync(kAllLanes, mine, max(warp - 1, 0));
  return (warp > 0 ? before : 0) + sum - x;
}

// One block; a thread has an expert, the one behind the last what is no expert. The order of an
// expert's pairs is not determined, and does not matter: each is a column of its own.
__global__ void __launch_bounds__(kSorters) expert_sort(const __grid_constant__ ExpertSortArgs a) {
  __shared__ i32 counts[kSorters], begins[kSorters], firsts[kSorters], taken[kSorters];
  const int used = (int)a.ids.ne[0], n_pairs = used * (int)a.ids.ne[1], e = threadIdx.x;
  counts[e] = taken[e] = 0;
  __syncthreads();
  begin_dependent();
  const auto expert_of = [&](int pair) {
    const i32 id =
        load_fresh(reinterpret_cast<const i32*>(a.ids.row(pair / used, 0, 0)) + pair % used);
    return (u32)id < (u32)a.n_experts ? id : a.n_experts;
  };
  for (int p = e; p < n_pairs; p += kSorters) atomicAdd(counts + expert_of(p), 1);
  __syncthreads();
  const int mine = counts[e], tiles = (mine + kMostColumns - 1) / kMostColumns;
  const bool known = e < a.n_experts;
  int slots = mine / kMostColumns * kMostColumns;
  if (mine % kMostColumns) slots += width_of(mine % kMostColumns);
  int total;
  const int first = sum_before(known ? slots : 0, total), begin = sum_before(mine, total);
  const int tile = sum_before(tiles, total);
  for (int i = 0; i < tiles; ++i) {
    const int at = i * kMostColumns;
    a.tiles[tile + i] = {known ? e : -1, begin + at, min(kMostColumns, mine - at), first + at};
  }
  if (e == 0) *a.n_tiles = total;
  begins[e] = begin;
  firsts[e] = first;
  __syncthreads();
  for (int p = e; p < n_pairs; p += kSorters) {
    const int id = expert_of(p), i = atomicAdd(taken + id, 1);
    const int at = i / kMostColumns * kMostColumns;
    a.pairs[begins[id] + i] = p;
    const int width = id < a.n_experts ? width_of(min(kMostColumns, counts[id] - at)) : 0;
    a.slots[p] = {firsts[id] + at, width, i - at, 0};
  }
}

struct ExpertRowsArgs {
  gf_tensor x;  // [m, k], or [m, used, k] with a row for each pair
  const ExpertSlot* slots;
  char* to;       // [slots][k / 64][width][64] of T by tile, the pieces of 16 bytes swizzled
  float* scales;  // of each column
  i32 used, own_rows;
  i32 lane, half;  // elements from lane to lane, and to a lane's second four (columns_weights.cuh)
};

constexpr int kThreads = 256;

// What lane i of four has for lane j becomes what lane j has from lane i.
__device__ __forceinline__ uint4 turned(const u32 (&w)[4], int t) {
  u32 y[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int to = t ^ r;
    const u32 mine = to & 2 ? (to & 1 ? w[3] : w[2]) : (to & 1 ? w[1] : w[0]);
    y[r] = __shfl_xor_sync(kAllLanes, mine, r);
  }
  // y[r] comes from lane t ^ r.
  const auto from = [&](int lane) {
    const int r = t ^ lane;
    return r & 2 ? (r & 1 ? y[3] : y[2]) : (r & 1 ? y[1] : y[0]);
  };
  return {from(0), from(1), from(2), from(3)};
}

// A block a row of x; a thread has R times eight elements. SPLIT: the pairs of four elements are
// (0, 2) and (1, 3), and not neighbours. Rows of f16 are scaled as in mul_mat_rows.cu.
template <class T, bool SPLIT, int R>
__global__ void __launch_bounds__(kThreads) expert_rows(const __grid_constant__ ExpertRowsArgs a) {
  begin_dependent();
  const int row = blockIdx.x, k = (int)a.x.ne[0], t = threadIdx.x % 4;
  const int copies = a.own_rows ? 1 : a.used;
  const float* const x = reinterpret_cast<const float*>(
      a.own_rows ? a.x.row(row % a.used, row / a.used, 0) : a.x.row(row, 0, 0));
  float4 v[R][2];
  float largest = 0.0f;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = r * kThreads + threadIdx.x;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = i / 4 * 32 + t * a.lane + h * a.half;
      v[r][h] = i < k / 8 ? load_fresh(reinterpret_cast<const float4*>(x + at)) : float4{};
      largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v[r][h].x), fabsf(v[r][h].y))),
                      fmaxf(fabsf(v[r][h].z), fabsf(v[r][h].w)));
    }
  }
  const bool scaled = is_same<T, f16>::value;
  const float power = scaled ? power_of(block_reduce(largest, Max())) : 1.0f;
  const float scale = 1.0f / power;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = r * kThreads + threadIdx.x, block32 = i / 4;
    u32 w[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 y = {v[r][h].x * scale, v[r][h].y * scale, v[r][h].z * scale, v[r][h].w * scale};
      w[2 * h] = Float<T>::pair(y.x, SPLIT ? y.z : y.y);
      w[2 * h + 1] = Float<T>::pair(SPLIT ? y.y : y.z, y.w);
    }
    const uint4 piece = turned(w, t);
    if (i >= k / 8) continue;
    for (int j = 0; j < copies; ++j) {
      const ExpertSlot s = load_fresh(a.slots + (i64)row * copies + j);
      if (s.width == 0) continue;
      char* const to = a.to + (i64)s.first * k * 2 +
                       ((i64)(block32 / 2) * s.width + s.column) * 128 +
                       ((block32 % 2 * 4 + t) ^ (s.column % 8)) * 16;
      *reinterpret_cast<uint4*>(to) = piece;
    }
  }
  if (threadIdx.x < copies) {
    const ExpertSlot s = load_fresh(a.slots + (i64)row * copies + threadIdx.x);
    if (s.width) a.scales[s.first + s.column] = power;
  }
}
