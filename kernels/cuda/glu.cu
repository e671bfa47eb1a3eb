// swiglu, geglu, reglu: act(gate) * up.
#include "cuda/functions.cuh"

template <class Act>
struct gated : Functor {
  __device__ float operator()(float gate, float up) const { return Act()(gate) * up; }
};
