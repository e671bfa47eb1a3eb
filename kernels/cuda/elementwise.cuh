// The element-wise template: a functor of any number of operands mapped over tensors of one shape.
//
// Dense tensors are one run of elements: each thread takes packs of up to 16 bytes an operand, the
// grid strides over them, and the elements that fill no pack are done one by one. Other tensors go
// through the strides, by packs where rows are whole packs and by elements where not. A functor is
// `float operator()(float...)`; one with PAIRED also maps two 16-bit elements in one word with
// `pair<T>`, one with ROUGH computes 16-bit results by `float rough(float...)`.
#pragma once

#include "cuda/dependent.cuh"

struct Functor {
  static constexpr bool PAIRED = false;
  static constexpr bool ROUGH = false;
};

// f for a result of type D.
template <class D, class F, class... X>
__device__ __forceinline__ float apply(const F& f, X... x) {
  if constexpr (F::ROUGH && sizeof(D) == 2) {
    return f.rough(x...);
  } else {
    return f(x...);
  }
}

template <int N, class F>
struct MapArgs {
  gf_tensor dst;
  gf_tensor src[N];
  i64 n;          // elements; packs of map_strided
  FastDiv by[3];  // packs a row, ne[1], ne[2]
  u32 unused;
  F f;
};

template <int... I>
struct Sequence {};
template <int N, int... I>
struct MakeSequence : MakeSequence<N - 1, N - 1, I...> {};
template <int... I>
struct MakeSequence<0, I...> {
  typedef Sequence<I...> type;
};

// f over the packs, element by element; 16-bit results are rounded two at a time.
template <class D, int V, class F, class... S>
__device__ __forceinline__ Pack<D, V> map_pack(const F& f, const Pack<S, V>&... p) {
  Pack<D, V> out;
  if constexpr (sizeof(D) == 2 && V % 2 == 0) {
    u32* const words = reinterpret_cast<u32*>(&out);
    if constexpr (F::PAIRED && (is_same<D, S>::value && ...)) {
#pragma unroll
      for (int k = 0; k < V / 2; ++k) {
        words[k] = f.template pair<D>(reinterpret_cast<const u32*>(&p)[k]...);
      }
    } else {
#pragma unroll
      for (int k = 0; k < V; k += 2) {
        words[k / 2] = Float<D>::pair(apply<D>(f, element_f32(p, k)...),
                                      apply<D>(f, element_f32(p, k + 1)...));
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = Float<D>::from(apply<D>(f, element_f32(p, k)...));
  }
  return out;
}

// The pointers may be equal (an op in place) though they are declared not to be: a thread reads an
// element before it writes it, and no other thread touches it.
template <int V, class F, class D, class... S>
__device__ __forceinline__ void map_runs(const F& f, i64 n, D* __restrict__ dst,
                                         const S* __restrict__... src) {
  const i64 packs = n / V;
#pragma unroll 4
  for (i64 i = global_thread(); i < packs; i += global_threads()) {
    reinterpret_cast<Pack<D, V>*>(dst)[i] =
        map_pack<D>(f, load_fresh(reinterpret_cast<const Pack<S, V>*>(src) + i)...);
  }
  for (i64 i = packs * V + global_thread(); i < n; i += global_threads()) {
    dst[i] = Float<D>::from(apply<D>(f, to_f32(load_fresh(src + i))...));
  }
}

template <int V, class F, class D, class... S, int... I>
__device__ __forceinline__ void map_dense_at(const MapArgs<sizeof...(S), F>& a, Sequence<I...>) {
  map_runs<V>(a.f, a.n, reinterpret_cast<D*>(a.dst.data),
              reinterpret_cast<const S*>(a.src[I].data)...);
}

template <int V, class F, class D, class... S>
__global__ void __launch_bounds__(256)
    map_dense(const __grid_constant__ MapArgs<sizeof...(S), F> a) {
  begin_dependent();
  map_dense_at<V, F, D, S...>(a, typename MakeSequence<sizeof...(S)>::type());
}

template <class T, int V>
__device__ __forceinline__ Pack<T, V>* pack_at(const gf_tensor& t, const Index& at) {
  return reinterpret_cast<Pack<T, V>*>(t.row(at.i1, at.i2, at.i3) + at.i0 * V * t.nb[0]);
}

template <bool WIDE, int V, class F, class D, class... S, int... I>
__device__ __forceinline__ void map_strided_at(const MapArgs<sizeof...(S), F>& a, Sequence<I...>) {
  const i64 ne[3] = {a.dst.ne[0] / V, a.dst.ne[1], a.dst.ne[2]};
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    const Index at = unravel<WIDE>(i, ne, a.by);
    *pack_at<D, V>(a.dst, at) = map_pack<D>(a.f, load_fresh(pack_at<S, V>(a.src[I], at))...);
  }
}

template <bool WIDE, int V, class F, class D, class... S>
__global__ void __launch_bounds__(256)
    map_strided(const __grid_constant__ MapArgs<sizeof...(S), F> a) {
  begin_dependent();
  map_strided_at<WIDE, V, F, D, S...>(a, typename MakeSequence<sizeof...(S)>::type());
}
