// scale: x s + b; clamp: min(max(x, lo), hi).
#include "cuda/elementwise.cuh"

struct scale : Functor {
  float s, b;
  __device__ float operator()(float x) const { return fmaf(x, s, b); }
};
struct clamp : Functor {
  float lo, hi;
  __device__ float operator()(float x) const { return x < lo ? lo : x > hi ? hi : x; }
};
