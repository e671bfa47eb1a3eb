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
