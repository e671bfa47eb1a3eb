// Programmatic dependent launch: a kernel that starts before the one before it has ended.
#pragma once

#include "cuda/common.cuh"

// The next kernel of the stream may start; its griddepcontrol.wait still waits for this one's end.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the kernels before this one are done and their results can be read.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// For kernels that do nothing before the wait. The next one may start only then: where every kernel
// of a row of small ones lets the next in before it waits itself, many lie on the device at once,
// and a run's results were wrong (LOG).
__device__ __forceinline__ void begin_dependent() {
  wait_for_previous();
  launch_dependents();
}

// What an earlier kernel wrote, read past L1, which may hold what was there before: the block may
// have started while an older kernel ran. Of 1, 2, 4, 8 or 16 bytes.
template <class T>
__device__ __forceinline__ T load_fresh(const T* p) {
  const auto as = [p](auto word) {
    union {
      decltype(word) bits;
      T value;
    } u = {__ldcg(reinterpret_cast<const decltype(word)*>(p))};
    return u.value;
  };
  if constexpr (sizeof(T) == 16) {
    return as(uint4{});
  } else if constexpr (sizeof(T) == 8) {
    return as(uint2{});
  } else if constexpr (sizeof(T) == 4) {
    return as(0u);
  } else if constexpr (sizeof(T) == 2) {
    return as((unsigned short)0);
  } else {
    static_assert(sizeof(T) == 1, "no load is so wide");
    return as((unsigned char)0);
  }
}
