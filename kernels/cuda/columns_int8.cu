// Columns for products of quantized weights, as records of int8 (int8_columns.cuh), times the
// weights of a norm if there is one; and the turns of rotated heads.
#include "cuda/dependent.cuh"
#include "cuda/int8_columns.cuh"
#include "cuda/rope.cuh"

struct Int8ColumnsArgs {
  gf_tensor x;           // [c3, c2, m, k] f32, rows dense and aligned to 16 bytes
  const float* norm;     // weights of the norm, or null
  char* to;              // records [k / 256][groups]
  float* squares;        // [8 groups][k / 32] sums of squares of each block, or null
  const i32* pos;        // of each column, for turns
  const float* factors;  // of the frequencies, or null
  float2* turns;         // [m, half_dim] cosine and sine; nothing if half_dim is zero
  RopeNumbers rope;
  int m, groups, half_dim;
};

// A block a record, a warp a column of it; then, if half_dim is not zero, a block a column's turns.
template <int SUMS>
__global__ void __launch_bounds__(256) int8_columns(const __grid_constant__ Int8ColumnsArgs a) {
  launch_dependents();
  const int records = (int)a.x.ne[0] / kChunkK * a.groups;
  if (blockIdx.x >= records) {
    const int column = blockIdx.x - records;
    for (int i = threadIdx.x; i < a.half_dim; i += blockDim.x) {
      const double angle = angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
      wait_for_previous();
      float2 at;
      turn(a.rope, __ldcg(a.pos + column) * angle, &at.y, &at.x);
      a.turns[column * a.half_dim + i] = at;
    }
    return;
  }
  const int lane = threadIdx.x % 32, within = threadIdx.x / 32;
  const int chunk = blockIdx.x / a.groups, column = blockIdx.x % a.groups * 8 + within;
  const int at = chunk * kChunkK + octet_at(lane);
  Octet norm = {}, v = {};
  if (a.norm) {
    norm = {*reinterpret_cast<const float4*>(a.norm + at),
            *reinterpret_cast<const float4*>(a.norm + at + 16)};
  }
  wait_for_previous();
  if (column < a.m) v = ask_octet(reinterpret_cast<const float*>(a.x.row(column)) + at);
  if (a.norm) {
    const float squares = block_squares(v);
    const int blocks = (int)a.x.ne[0] / 32, block = chunk * kChunkBlocks + lane / 4;
    if (lane % 4 == 0) a.squares[column * blocks + block] = squares;
    v = times(v, norm);
  }
  char* const record = a.to + (i64)blockIdx.x * record_bytes(SUMS);
  put_column(v, within, SUMS, lane, reinterpret_cast<uint2*>(record),
             reinterpret_cast<float*>(record + kRecordD));
}
