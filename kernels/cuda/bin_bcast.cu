// add, sub, mul, div with the second operand repeated: index i of a dimension reads element
// i % ne of it.
//
// The launch collapses dimensions that lie one behind the other and gives those the second operand
// is repeated along a stride of zero; modulo is left for shapes that would take more dimensions. V
// elements of a row are taken at a time where the rows allow it; SCALAR: the second operand is one
// value a row.
#include "cuda/elementwise.cuh"

struct add : Functor {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct sub : Functor {
  __device__ float operator()(float a, float b) const { return a - b; }
};
struct mul : Functor {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct div_ : Functor {
  __device__ float operator()(float a, float b) const { return a / b; }
};

struct BinArgs {
  gf_tensor dst, a, b;
  i64 n;          // packs in all
  i64 row_packs;  // packs a row
  FastDiv by[3];  // row_packs, ne[1], ne[2]
};

// Lengths that are equal, the usual case, spare the division.
__device__ __forceinline__ i64 wrap(i64 i, i64 ne_b, i64 ne) { return ne_b == ne ? i : i % ne_b; }

__device__ __forceinline__ const char* b_row(const BinArgs& g, i64 i1, i64 i2, i64 i3) {
  return g.b.row(wrap(i1, g.b.ne[1], g.dst.ne[1]), wrap(i2, g.b.ne[2], g.dst.ne[2]),
                 wrap(i3, g.b.ne[3], g.dst.ne[3]));
}

// Pack p of a row.
template <class F, class A, class B, int V, bool SCALAR>
__device__ __forceinline__ void compute(const BinArgs& g, const char* a, const char* b, char* dst,
                                        i64 p) {
  if constexpr (V == 1) {
    const float x = to_f32(load_fresh(reinterpret_cast<const A*>(a + p * g.a.nb[0])));
    const i64 pb = wrap(p, g.b.ne[0], g.dst.ne[0]);
    const float y = to_f32(*reinterpret_cast<const B*>(b + pb * g.b.nb[0]));
    *reinterpret_cast<A*>(dst + p * g.dst.nb[0]) = Float<A>::from(F()(x, y));
  } else {
    const Pack<A, V> x = load_fresh(reinterpret_cast<const Pack<A, V>*>(a) + p);
    Pack<B, V> y;
    if constexpr (SCALAR) {
      const B one = *reinterpret_cast<const B*>(b);
#pragma unroll
      for (int k = 0; k < V; ++k) y.v[k] = one;
    } else {
      y = reinterpret_cast<const Pack<B, V>*>(b)[p];
    }
    reinterpret_cast<Pack<A, V>*>(dst)[p] = map_pack<A>(F(), x, y);
  }
}

// Blocks over (row_packs / 2, ne1, ne2 * ne3).
template <class F, class A, class B, int V, bool SCALAR>
__global__ void __launch_bounds__(128) bin_bcast(const __grid_constant__ BinArgs g) {
  begin_dependent();
  const i64 i1 = (i64)blockIdx.y * blockDim.y + threadIdx.y;
  const i64 i23 = (i64)blockIdx.z * blockDim.z + threadIdx.z;
  const i64 i3 = g.by[2].div((u32)i23), i2 = i23 - i3 * g.dst.ne[2];
  if (i1 >= g.dst.ne[1] || i3 >= g.dst.ne[3]) return;
  const char* const a = g.a.row(i1, i2, i3);
  const char* const b = b_row(g, i1, i2, i3);
  char* const dst = g.dst.row(i1, i2, i3);
#pragma unroll 2
  for (i64 p = global_thread(); p < g.row_packs; p += global_threads()) {
    compute<F, A, B, V, SCALAR>(g, a, b, dst, p);
  }
}

// One thread a pack over everything: for short rows, whose packs neighbouring threads then share
// out without gaps, and for grids that would have too many blocks in y or z.
template <bool WIDE, class F, class A, class B, int V, bool SCALAR>
__global__ void __launch_bounds__(128) bin_bcast_unravel(const __grid_constant__ BinArgs g) {
  begin_dependent();
  const i64 i = global_thread();
  if (i >= g.n) return;
  const i64 ne[3] = {g.row_packs, g.dst.ne[1], g.dst.ne[2]};
  const Index at = unravel<WIDE>(i, ne, g.by);
  compute<F, A, B, V, SCALAR>(g, g.a.row(at.i1, at.i2, at.i3), b_row(g, at.i1, at.i2, at.i3),
                              g.dst.row(at.i1, at.i2, at.i3), at.i0);
}

// Elements [i, i + V) of dense a and dst, or those before n.
template <class F, class A, class B, int V>
__device__ __forceinline__ void flat(const BinArgs& g, i64 i, int count, const Pack<B, V>& y) {
  const A* const a = reinterpret_cast<const A*>(g.a.data) + i;
  A* const dst = reinterpret_cast<A*>(g.dst.data) + i;
  if (count == V) {
    const Pack<A, V> x = load_fresh(reinterpret_cast<const Pack<A, V>*>(a));
    *reinterpret_cast<Pack<A, V>*>(dst) = map_pack<A>(F(), x, y);
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (k < count) dst[k] = Float<A>::from(F()(to_f32(load_fresh(a + k)), to_f32(y.v[k])));
    }
  }
}

// Dense a and dst, and one row b that is repeated whole: element i takes b's i modulo its length,
// by[0]. V elements a thread from a multiple of V on; n counts elements.
template <bool WIDE, class F, class A, class B, int V>
__global__ void __launch_bounds__(128) bin_bcast_cycle(const __grid_constant__ BinArgs g) {
  begin_dependent();
  const i64 i = global_thread() * V;
  if (i >= g.n) return;
  const u32 cycle = g.by[0].divisor, step = (u32)g.b.nb[0];
  u32 j = WIDE ? (u32)(i % cycle) : (u32)i - g.by[0].div((u32)i) * cycle;
  Pack<B, V> y;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    y.v[k] = *reinterpret_cast<const B*>(g.b.data + (u64)j * step);
    j = j + 1 == cycle ? 0 : j + 1;
  }
  flat<F, A, B, V>(g, i, g.n - i < V ? (int)(g.n - i) : V, y);
}

// As before with a b of more dimensions, whose rows are no whole number of packs: a pack may reach
// into the next row.
template <bool WIDE, class F, class A, class B, int V>
__global__ void __launch_bounds__(128) bin_bcast_flat(const __grid_constant__ BinArgs g) {
  begin_dependent();
  const i64 i = global_thread() * V;
  if (i >= g.n) return;
  const int count = g.n - i < V ? (int)(g.n - i) : V;
  Index at = unravel<WIDE>(i, g.dst.ne, g.by);
  const char* row = b_row(g, at.i1, at.i2, at.i3);
  const char* b = row + wrap(at.i0, g.b.ne[0], g.dst.ne[0]) * g.b.nb[0];
  Pack<B, V> y;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (k < count) y.v[k] = *reinterpret_cast<const B*>(b);
    b += g.b.nb[0];
    if (++at.i0 == g.dst.ne[0]) {
      at.i0 = 0;
      if (++at.i1 == g.dst.ne[1]) {
        at.i1 = 0;
        if (++at.i2 == g.dst.ne[2]) at.i2 = 0, ++at.i3;
      }
      row = b_row(g, at.i1, at.i2, at.i3);  // past the end after the last element: not read
      b = row;
    } else if (g.b.ne[0] != g.dst.ne[0] && at.i0 % g.b.ne[0] == 0) {
      b = row;
    }
  }
  flat<F, A, B, V>(g, i, count, y);
}
