// mirror: a plan's inputs from the host's memory, or its small outputs to it. As a node of a
// captured graph a kernel costs less than a copy does. One block a buffer.
#include "cuda/dependent.cuh"

constexpr int kBuffers = 4;

struct MirrorArgs {
  char* to[kBuffers];
  const char* from[kBuffers];
  i64 nbytes[kBuffers];  // multiples of 16, aligned so
};

__global__ void __launch_bounds__(1024) mirror(const __grid_constant__ MirrorArgs a) {
  launch_dependents();
  wait_for_previous();
  const int b = blockIdx.x;
  for (i64 i = threadIdx.x * 16; i < a.nbytes[b]; i += blockDim.x * 16) {
    // Volatile: the host changes its memory between runs.
    *reinterpret_cast<uint4*>(a.to[b] + i) =
        load_volatile(reinterpret_cast<const uint4*>(a.from[b] + i));
  }
}
