// Rows of the states that keep keys and values.
#pragma once

#include "cuda/common.cuh"

// Element i of a row of type 0 (f32), 1 (f16) or 2 (bf16).
__device__ __forceinline__ void put_state(char* row, int type, int i, float y) {
  if (type == 0) {
    reinterpret_cast<float*>(row)[i] = y;
  } else if (type == 1) {
    reinterpret_cast<f16*>(row)[i] = Float<f16>::from(y);
  } else {
    reinterpret_cast<bf16*>(row)[i] = Float<bf16>::from(y);
  }
}
