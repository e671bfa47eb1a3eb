// swiglu, geglu, reglu, swiglu_clamped and sigmoid_mul.
#include "cuda/gated.cuh"
