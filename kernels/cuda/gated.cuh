// Gated activations: act(gate) * up, and the clamped form of gpt-oss.
#pragma once

#include "cuda/functions.cuh"

template <class Act>
struct gated : Functor {
  __device__ float operator()(float gate, float up) const { return Act()(gate) * up; }
};

struct gated_clamped : Functor {
  float alpha, limit;

  __device__ float operator()(float gate, float up) const {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return g * reciprocal(1.0f + expf(-alpha * g)) * (u + 1.0f);
  }
};
