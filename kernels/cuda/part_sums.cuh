// Sums over parts of k that a library has made, one after the other.
#pragma once

#include "cuda/common.cuh"

struct PartSums {
  const float* data;
  i64 plane, parts;  // elements from one part's sums to the next one's; how many there are

  // Element i of the whole sums: the parts are added in order.
  __device__ __forceinline__ float at(i64 i) const {
    float sum = __ldcg(data + i);
    for (i64 part = 1; part < parts; ++part) sum += __ldcg(data + part * plane + i);
    return sum;
  }
};
