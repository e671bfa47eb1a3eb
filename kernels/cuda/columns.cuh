// Weight rows times several columns: what mul_mat_stream.cu, mul_mat_columns.cu, mul_mat_chain.cu
// and mul_mat_wide.cu share. Which rows belong together, and what becomes of their sums.
//
// Rows go by twos, called pairs, as in vec_parts.cuh: neighbours of one matrix; for GLU the same
// row of gate and up; for QKV two dimensions that are rotated together. The two are rows r and r +
// 8 of sixteen in a fragment, so that one thread has the sums of both.
#pragma once

#include "cuda/functions.cuh"
#include "cuda/kv_state.cuh"

enum { PLAIN, GLU, QKV };

// 0x000F000F and 0x00F000F0, which the compiler must not know: as constants they would be moved
// into registers at every use.
struct Masks {
  u32 low, high;
};

// Mirrored by `arguments` in columns.py.
struct ColumnsArgs {
  const char* w[3];          // of one type, rows w_row bytes apart
  const char* x;             // the columns as round_columns leaves them
  const float* scales;       // of each column, or null
  const char* r;             // added to the result, or null
  const float2* turns;       // [m, head_dim / 2] cosine and sine
  const i32* state_rows;     // rows of the states that the columns become; null: as they come
  char* state[2];            // keys and values
  float* dst;                // [m, n], dst_row elements from column to column
  float4* parts;             // sums of parts of k, if there are several
  i64 w_row, r_row, r_step;  // bytes: r's from column to column and from row to row
  i64 state_step[2];         // bytes from row to row
  int pairs[3], rows[3];     // of each matrix
  int kind, first;           // of QKV: the first matrix is the queries', keys' or values'
  int n, m, k, splits, tiles;
  int head_dim, neox, state_type[2], n_state;
  int w_stages, x_stages, w_stride;  // how the kernel's memory is divided
  Masks masks;
  i64 dst_row;
};

// A tile of so many pairs: its matrix and its first pair.
struct Tile {
  int matrix, pair;
};

template <int PAIRS>
__device__ __forceinline__ Tile tile_of(const ColumnsArgs& a, int tile) {
  int matrix = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int tiles = (a.pairs[i] + PAIRS - 1) / PAIRS;
    if (a.kind == QKV && matrix == i && tile >= tiles) {
      tile -= tiles;
      matrix = i + 1;
    }
  }
  return {matrix, tile * PAIRS};
}

// The rows of a pair; an odd last row is its own partner. kind: a.kind, where the compiler knows
// it.
__device__ __forceinline__ int2 rows_of(int kind, const ColumnsArgs& a, int matrix, int pair) {
  if (kind == GLU) return {pair, pair};
  if (kind == QKV && a.first + matrix < 2 && a.neox) {
    const int half = a.head_dim / 2, row = pair / half * a.head_dim + pair % half;
    return {row, row + half};
  }
  return {2 * pair, min(2 * pair + 1, a.rows[matrix] - 1)};
}
__device__ __forceinline__ int2 rows_of(const ColumnsArgs& a, int matrix, int pair) {
  return rows_of(a.kind, a, matrix, pair);
}

// Where the first or the second row of a pair starts. Past the end it is the last pair's. kind: as
// above.
__device__ __forceinline__ const char* row_start(int kind, const ColumnsArgs& a, int matrix,
                                                 int pair, bool second) {
  const int2 rows = rows_of(kind, a, matrix, min(pair, a.pairs[matrix] - 1));
  const char* w = a.w[0];
  const int at = kind == GLU ? (int)second : matrix;
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    if (at == i) w = a.w[i];
  }
  return w + (second ? rows.y : rows.x) * a.w_row;
}
__device__ __forceinline__ const char* row_start(const ColumnsArgs& a, int matrix, int pair,
                                                 bool second) {
  return row_start(a.kind, a, matrix, pair, second);
}

// Of sixteen rows that are read as two eights: whether they are in order, those of pairs being
// neighbours, or the second eight are the partners of the first.
__device__ __forceinline__ bool in_order(int kind, const ColumnsArgs& a, int matrix) {
  return kind == PLAIN || (kind == QKV && (a.first + matrix >= 2 || !a.neox));
}
// Where the first or the second eight begins, if eights lie together, of the rows from a pair on.
// order: whether they are in order.
__device__ __forceinline__ const char* eight_start(int kind, const ColumnsArgs& a, const Tile& t,
                                                   bool second, bool order) {
  const char* const from = row_start(kind, a, t.matrix, t.pair, second && !order);
  return second && order ? from + 8 * a.w_row : from;
}
// Which of the eight pairs lanes 4 r and following finish.
__device__ __forceinline__ int pair_of_eight(int r, bool order) {
  return order ? r % 2 * 4 + r / 2 : r;
}
// Of rows in order lanes 4 r and following have the sums of the r-th and of the eighth after it:
// those of the pair that they finish.
__device__ __forceinline__ float2 in_pairs(float2 y) {
  const bool odd = threadIdx.x % 32 / 4 % 2;
  const float other = __shfl_xor_sync(kAllLanes, odd ? y.x : y.y, 4);
  return odd ? float2{other, y.y} : float2{y.x, other};
}

// What meets the sums of a pair in a column; asked for while these are made.
struct BesideOne {
  float scale, r[2];  // r: of the first and the second row
  float2 turn;
  int state_row;
};

__device__ __forceinline__ BesideOne beside_one(int kind, const ColumnsArgs& a, int matrix,
                                                int pair, int column) {
  BesideOne b = {};
  if (pair >= a.pairs[matrix]) return b;
  const int2 rows = rows_of(kind, a, matrix, pair);
  const int at = min(column, a.m - 1);
  b.scale = a.scales ? __ldcg(a.scales + at) : 1.0f;
  if (a.r) {
    const char* const r = a.r + at * a.r_row;
    b.r[0] = __ldcg(reinterpret_cast<const float*>(r + rows.x * a.r_step));
    b.r[1] = __ldcg(reinterpret_cast<const float*>(r + rows.y * a.r_step));
  }
  if (kind == QKV) {
    const int half = a.head_dim / 2;
    b.turn = __ldcg(a.turns + at * half + pair % half);
    b.state_row = a.state_rows ? __ldcg(a.state_rows + at) : at;
  }
  return b;
}
__device__ __forceinline__ BesideOne beside_one(const ColumnsArgs& a, int matrix, int pair,
                                                int column) {
  return beside_one(a.kind, a, matrix, pair, column);
}

// The same of a single column and a pair that there is, but for the scale and the turn.
__device__ __forceinline__ BesideOne beside_single(int kind, const ColumnsArgs& a, int matrix,
                                                   int pair) {
  BesideOne b = {};
  if (kind == PLAIN && a.r) {
    const int2 rows = rows_of(kind, a, matrix, pair);
    b.r[0] = __ldcg(reinterpret_cast<const float*>(a.r + rows.x * a.r_step));
    b.r[1] = __ldcg(reinterpret_cast<const float*>(a.r + rows.y * a.r_step));
  }
  if (kind == QKV) b.state_row = a.state_rows ? __ldcg(a.state_rows) : 0;
  return b;
}

// Of PLAIN: the sums y0 and y1 of a pair's rows in a column with what is added to them.
__device__ __forceinline__ float2 plain_sums(float y0, float y1, const BesideOne& b) {
  return {__fmul_rn(y0, b.scale) + b.r[0], __fmul_rn(y1, b.scale) + b.r[1]};
}

// Of GLU: what they become.
__device__ __forceinline__ float gated_sums(float y0, float y1, const BesideOne& b, bool rough) {
  y0 = __fmul_rn(y0, b.scale);
  y1 = __fmul_rn(y1, b.scale);
  return (rough ? silu().rough(y0) : silu()(y0)) * y1;
}

// What becomes of the sums y0 and y1 of a pair's rows in a column. Each operation is rounded as
// written, so that all kernels give the same bits. AT_ONCE: neighbours are one store, for warps
// that write runs of pairs, maybe to another device, to which a sector written by two stores
// crosses twice. rough: silu as in mul_mat_tma.cu.
template <bool AT_ONCE = false>
__device__ __forceinline__ void finish_one(int kind, const ColumnsArgs& a, int matrix, int pair,
                                           int column, float y0, float y1, const BesideOne& b,
                                           bool rough = false) {
  if (pair >= a.pairs[matrix] || column >= a.m) return;
  const int2 rows = rows_of(kind, a, matrix, pair);
  const int role = a.first + matrix;
  float* const dst = a.dst + column * a.dst_row;
  if (kind == GLU) {
    dst[pair] = gated_sums(y0, y1, b, rough);
    return;
  }
  y0 = __fmul_rn(y0, b.scale);
  y1 = __fmul_rn(y1, b.scale);
  if (kind == QKV && role < 2) {
    const float u = fmaf(y0, b.turn.x, -__fmul_rn(y1, b.turn.y));
    y1 = fmaf(y0, b.turn.y, __fmul_rn(y1, b.turn.x));
    y0 = u;
  }
  if (kind == QKV && role > 0) {
    if (b.state_row < 0 || b.state_row >= a.n_state) return;
    char* const row = a.state[role - 1] + b.state_row * a.state_step[role - 1];
    put_state(row, a.state_type[role - 1], rows.x, y0);
    put_state(row, a.state_type[role - 1], rows.y, y1);
    return;
  }
  y0 += b.r[0];
  y1 += b.r[1];
  if constexpr (AT_ONCE) {
    float* const to = dst + rows.x;
    if (rows.y == rows.x + 1 && reinterpret_cast<size_t>(to) % sizeof(float2) == 0) {
      *reinterpret_cast<float2*>(to) = {y0, y1};
      return;
    }
  }
  dst[rows.x] = y0;
  dst[rows.y] = y1;
}
__device__ __forceinline__ void finish_one(const ColumnsArgs& a, int matrix, int pair, int column,
                                           float y0, float y1, const BesideOne& b) {
  finish_one(a.kind, a, matrix, pair, column, y0, y1, b);
}

// The same for columns column and column + 1, of which the sums of the first row are x and y, those
// of the second z and w.
struct Beside {
  BesideOne of[2];
};

__device__ __forceinline__ Beside beside_of(const ColumnsArgs& a, int matrix, int pair,
                                            int column) {
  return {beside_one(a, matrix, pair, column), beside_one(a, matrix, pair, column + 1)};
}

__device__ __forceinline__ void finish(const ColumnsArgs& a, int matrix, int pair, int column,
                                       float4 sums, const Beside& b) {
  finish_one(a, matrix, pair, column, sums.x, sums.z, b.of[0]);
  finish_one(a, matrix, pair, column + 1, sums.y, sums.w, b.of[1]);
}
