// Columns rounded to 16-bit floats, and the orders in which products with 16-bit weights are
// summed.
//
//   - An element is v = x, or x times the norm's weight rounded once, times `scale`, rounded once
//     to float and once to 16 bits. scale is 1, or 1 / sqrtf(squares / k + eps) after a norm; for
//     float16 it is divided by a power of two (power_of), by which the row's sum is multiplied.
//   - squares: a chunk of 256 elements is shared out among lanes, eight neighbours each, of which a
//     lane has the chain fma(x, x, .) from 0. Lanes are added by warp_reduce, chunks by
//     sum_of_chunks.
//   - With equal bits a sum is a chain from 0 along k, in steps of sixteen neighbouring elements:
//     each is added to the sum so far by one product of the tensor cores, in which their order does
//     not matter (mma.m16n8k16, or a step of wgmma; not two of m16n8k8). Each part of k has such
//     a chain, of which a matrix has as many as mul_mat_tma.py says, and the parts are added in
//     order: mul_mat_one_float.cu (one column), mul_mat_tma.cu (others), mul_mat_tma_many.cu
//     (many), of one part a library too. Matrices that mul_mat_tma.cu does not take have one chain:
//     mul_mat_one_float.cu, mul_mat_chain.cu (2 to 16 columns), mul_mat_wide.cu (17 to 128), a
//     library or mul_mat_tma_many.cu.
//   - Without, mul_mat_stream.cu (2 to 16 columns) has an order of its own, which follows from k.
//     That is divided into slices (Slice). A slice's blocks of 32 elements go round its 16 parts,
//     one or two at a time (float_parts.py). A part has the chain of mma.m16n8k16 over its blocks,
//     from 0: two products a block, of elements 8 t to 8 t + 3 and of 8 t + 4 to 8 t + 7, t from 0
//     to 3. The parts are added in order from 0 to the slice's sum, and the slices to the row's.
#pragma once

#include "cuda/four.cuh"

constexpr int kFloatParts = 16;     // of a slice
constexpr int kSquaresChunk = 256;  // elements whose squares are added first

// A slice of k in blocks of 32 elements.
struct Slice {
  int begin, blocks;
};
__device__ __forceinline__ Slice slice_of(int k, int slices, int slice) {
  const int units = (k + 255) / 256;
  const int begin = units * slice / slices * 8, end = units * (slice + 1) / slices * 8;
  return {begin, min(end, k / 32) - begin};
}

// Power of two by which a row with this largest magnitude is divided, as in mul_mat_rows.cu.
__device__ __forceinline__ float power_of(float largest) {
  if (!(largest > 32768.0f || (largest < 0.00390625f && largest > 0.0f))) return 1.0f;
  return gf_float_of((max(gf_bits_of(largest) >> 23, 29u) - 14) << 23);
}

// Of the squares of all chunks; the whole warp.
__device__ __forceinline__ float sum_of_chunks(const float* of_chunks, int chunks) {
  float sum = 0.0f;
#pragma unroll 1  // all wait for it, and code that is jumped over is slow to come
  for (int c = threadIdx.x % 32; c < chunks; c += 32) sum += of_chunks[c];
  return warp_reduce(sum, Add());
}

// What all elements of a row are multiplied by after a norm.
__device__ __forceinline__ float float_norm_scale(float squares, int k, float eps) {
  return 1.0f / sqrtf(squares / (float)k + eps);
}
