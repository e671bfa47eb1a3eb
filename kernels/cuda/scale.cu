// scale: x s + b; clamp: min(max(x, lo), hi); fatrelu: x above a cut, else 0.
#include "cuda/elementwise.cuh"

struct scale : Functor {
  float s, b;
  __device__ float operator()(float x) const { return fmaf(x, s, b); }
};
struct clamp : Functor {
  float lo, hi;
  __device__ float operator()(float x) const { return x < lo ? lo : x > hi ? hi : x; }
};
struct fatrelu : Functor {
  float cut;
  __device__ float operator()(float x) const { return x <= cut ? 0.0f : x; }
};
