// Groups of four warps of a block give each other registers, where the target has that.
#pragma once

// They are those that the block began with, as many for each thread as its launch bounds leave, and
// who asks for more than others gave back waits for ever. all: of one thread of each group. BLOCKS:
// of a multiprocessor.
template <int THREADS, int BLOCKS = 1>
constexpr bool registers_are_there(int all) {
  return all <= THREADS / 128 * (65536 / (BLOCKS * THREADS) / 8 * 8);
}

template <int COUNT>
__device__ __forceinline__ void registers_less() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT>
__device__ __forceinline__ void registers_more() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
