// The columns of the product behind, as columns_round.cu would leave them for
// mul_mat_fragments_few.cu, by the kernel that makes them: so no launch that rounds them stands
// between the two.
//
// They are rounded as they are. By which power of two they have to be divided follows from the
// largest of a whole column, which only the product behind sees. It is 1 but for columns that
// float16 does not hold, which that product rounds once more, from the floats that lie there too.
#pragma once

#include "cuda/float_columns.cuh"

// Where columns lie: [k / 32][columns][4 lanes] of 16 bytes, in the order of FRAGMENTS in
// columns_round.cu. Mirrored by `place` in next_fragments.py.
struct FragmentsPlace {
  char* to;             // null where nobody reads any
  float* largest;       // [columns][pieces]: the largest magnitude of each piece of a column
  int columns, pieces;  // columns: that lie together
  int of_halves;        // whether lanes have fours of both halves of 32, or eights

  __device__ __forceinline__ void put(int e, int column, float x) const {
    const int in = e % 32, half = of_halves ? in / 16 : in / 4 % 2;
    const int lane = of_halves ? in / 4 % 4 : in / 8;
    char* const from = to + ((i64)(e / 32 * columns + column) * 4 + lane) * 16;
    gf_u16* const at = reinterpret_cast<gf_u16*>(from + half * 8 + in % 2 * 4 + in / 2 % 2 * 2);
    *at = (gf_u16)Float<f16>::pair(x, 0.0f);
  }
  __device__ __forceinline__ void put_largest(int piece, int column, float x) const {
    largest[column * pieces + piece] = x;
  }
};

// The whole warp, of which a lane has an element of a block of 32 each: a piece of the column.
__device__ __forceinline__ void put_element(const FragmentsPlace& place, int block, int column,
                                            float x) {
  const int lane = threadIdx.x % 32;
  place.put(block * 32 + lane, column, x);
  const float most = warp_reduce(fabsf(x), Max());
  if (lane == 0) place.put_largest(block, column, most);
}

// Columns that the kernel before left so. Mirrored by `given` in next_fragments.py.
struct GivenFragments {
  const float* largest;  // [columns][pieces], or null: columns_round.cu left them
  i64 x_row;             // elements from a column to the next of the floats
  int pieces;

  // By what a column is to be divided; the whole warp.
  __device__ __forceinline__ float power(int column) const {
    float most = 0.0f;
    for (int i = threadIdx.x % 32; i < pieces; i += 32) {
      most = fmaxf(most, __ldcg(largest + column * pieces + i));
    }
    return power_of(warp_reduce(most, Max()));
  }
};
