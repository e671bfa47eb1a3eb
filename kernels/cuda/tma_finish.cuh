// What becomes of the sums of mul_mat_tma.cu and mul_mat_tma_many.cu: of a lane's two pairs of
// rows, which it has of several columns. Where these rows lie is found once; what a column adds to
// them is asked for before its sums are there.
#pragma once

#include "cuda/four.cuh"
#include "cuda/tma_pairs.cuh"

// Gate's and up's sums. Exact functions would take 3 us for 64 columns of 8B, when no weights are
// on their way.
__device__ __forceinline__ float gated(float gate, float up, float scale) {
  return silu().rough(gate * scale) * (up * scale);
}
// sums: of the first and the second row of the first pair, then of the next pair's. TABLE: what
// turns heads is in a table (ColumnsArgs::turns), else it is found here.
template <int KIND, bool TABLE = false>
struct LaneRows;

template <bool TABLE>
struct LaneRows<GLU, TABLE> {
  struct Beside {};
  const ColumnsArgs& a;
  const int pair;

  __device__ LaneRows(const ColumnsArgs& args, const Turns&, Tile tile, int within)
      : a(args), pair(tile.pair + within) {}
  __device__ __forceinline__ Beside ask(int) const { return {}; }
  __device__ __forceinline__ void finish(int column, float4 sums, float scale, Beside) const {
    float* const to = a.dst + column * a.dst_row + pair;
    if (pair < a.pairs[0]) to[0] = gated(sums.x, sums.y, scale);
    if (pair + 1 < a.pairs[0]) to[1] = gated(sums.z, sums.w, scale);
  }
};

template <bool TABLE>
struct LaneRows<PLAIN, TABLE> {
  using Beside = float4;
  const ColumnsArgs& a;
  const int row, left;        // rows that there are from the first on
  const bool stores4, adds4;  // whether four rows are 16 bytes

  __device__ LaneRows(const ColumnsArgs& args, const Turns&, Tile tile, int within)
      : a(args),
        row(2 * (tile.pair + within)),
        left(args.rows[0] - row),
        stores4(left >= 4 && args.dst_row % 4 == 0 && (u64)args.dst % 16 == 0),
        adds4(left >= 4 && args.r_step == 4 && args.r_row % 16 == 0 && (u64)args.r % 16 == 0) {}
  __device__ __forceinline__ Beside ask(int column) const {
    float4 v = {};
    if (a.r == nullptr) return v;
    const char* const r = a.r + column * a.r_row + row * a.r_step;
    if (adds4) return __ldcg(reinterpret_cast<const float4*>(r));
    const auto at = [&](int i) { return __ldcg(reinterpret_cast<const float*>(r + i * a.r_step)); };
    if (left > 0) v.x = at(0), v.y = at(1);
    if (left > 2) v.z = at(2), v.w = at(3);
    return v;
  }
  __device__ __forceinline__ void finish(int column, float4 sums, float scale,
                                         const Beside& beside) const {
    const float4 y = plus(times(sums, scale), beside);
    float* const to = a.dst + column * a.dst_row + row;
    if (stores4) {
      *reinterpret_cast<float4*>(to) = y;
      return;
    }
    if (left > 0) to[0] = y.x, to[1] = y.y;
    if (left > 2) to[2] = y.z, to[3] = y.w;
  }
};

template <bool TABLE>
struct LaneRows<QKV, TABLE> {
  struct Beside {
    float2 turns[2];  // cosine and sine
    int state_row;
  };
  const ColumnsArgs& a;
  const Turns& turns;
  const int matrix, role;
  int pair;
  int2 rows[2];
  double angles[2];  // from one position to the next

  __device__ LaneRows(const ColumnsArgs& args, const Turns& t, Tile tile, int within)
      : a(args),
        turns(t),
        matrix(tile.matrix),
        role(args.first + tile.matrix),
        pair(tile.pair + within) {
    const int half = a.head_dim / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i] = rows_of(QKV, a, matrix, pair + i);
      const int dim = (pair + i) % half;
      angles[i] = !TABLE && role < 2 ? t.angle(dim) : 0.0;
    }
  }
  __device__ __forceinline__ bool is_there(int i) const { return pair + i < a.pairs[matrix]; }
  __device__ __forceinline__ Beside ask(int column) const {
    Beside b = {{}, column};
    const int pos = !TABLE && role < 2 ? __ldcg(turns.pos + column) : 0;
    if (role > 0 && a.state_rows) b.state_row = __ldcg(a.state_rows + column);
    const int half = a.head_dim / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (role >= 2) continue;
      if constexpr (TABLE) {
        b.turns[i] = __ldcg(a.turns + column * half + (pair + i) % half);
      } else {
        turn(turns.rope, pos * angles[i], &b.turns[i].y, &b.turns[i].x);
      }
    }
    return b;
  }
  __device__ __forceinline__ void finish(int column, float4 sums, float scale,
                                         const Beside& beside) const {
    const float4 y = times(sums, scale);
    const float2 pairs[2] = {{y.x, y.y}, {y.z, y.w}};
    const bool kept = beside.state_row >= 0 && beside.state_row < a.n_state;
    if (role > 0 && !kept) return;
    char* const state =
        role > 0 ? a.state[role - 1] + beside.state_row * a.state_step[role - 1] : nullptr;
    float* const to = a.dst + column * a.dst_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 v = pairs[i];
      const float2 turn = beside.turns[i];
      if (role < 2) {  // rounded as in finish_one of columns.cuh
        v = {fmaf(v.x, turn.x, -__fmul_rn(v.y, turn.y)), fmaf(v.x, turn.y, __fmul_rn(v.y, turn.x))};
      }
      if (!is_there(i)) continue;
      if (role > 0) {
        put_state(state, a.state_type[role - 1], rows[i].x, v.x);
        put_state(state, a.state_type[role - 1], rows[i].y, v.y);
      } else {
        to[rows[i].x] = v.x;
        to[rows[i].y] = v.y;
      }
    }
  }
};
