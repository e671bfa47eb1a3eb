// cpy: conversion between element types, any strides to dense.
#include "cuda/dequant.cuh"
#include "cuda/elementwise.cuh"

struct identity : Functor {
  __device__ float operator()(float x) const { return x; }
};

struct CpyArgs {
  gf_tensor dst, src;
};

// Elements a thread: whole pieces of the source and whole units of the result.
template <class D, class S>
struct CpyUnit {
  static constexpr int value = larger(Writer<D>::UNIT, Row<S>::PIECE);
};

template <class D, class S>
__global__ void __launch_bounds__(128) cpy_blocks(const __grid_constant__ CpyArgs a) {
  begin_dependent();
  constexpr int N = CpyUnit<D, S>::value, PIECE = Row<S>::PIECE, UNIT = Writer<D>::UNIT;
  const i64 per_row = a.dst.ne[0] / N;
  const i64 n = per_row * a.dst.ne[1] * a.dst.ne[2] * a.dst.ne[3];
  for (i64 i = global_thread(); i < n; i += global_threads()) {
    const i64 r = i / per_row, c = i - r * per_row;
    const char* const from = a.src.row(r);
    char* const to = a.dst.row(r);
    float y[N];
#pragma unroll 8
    for (int p = 0; p < N / PIECE; ++p) {
      Row<S>::read(from, a.src.nb[0], c * (N / PIECE) + p, y + p * PIECE);
    }
#pragma unroll
    for (int u = 0; u < N / UNIT; ++u) {
      Writer<D>::write(to, a.dst.nb[0], c * (N / UNIT) + u, y + u * UNIT);
    }
  }
}
