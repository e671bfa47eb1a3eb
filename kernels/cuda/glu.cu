// swiglu, geglu, reglu and swiglu_clamped.
#include "cuda/gated.cuh"
