// Blocks that run at the same time and reach each other's shared memory.
#pragma once

#include "cuda/ring.cuh"

// Of a kernel: so many neighbouring blocks are a cluster, where there are clusters.
#if __CUDA_ARCH__ >= 900
#define GF_CLUSTER(n) __cluster_dims__(n, 1, 1)
#else
#define GF_CLUSTER(n)
#endif

#if __CUDA_ARCH__ >= 900

// All threads of all blocks.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// All threads of a cluster of so many blocks, or of the block.
template <int BLOCKS>
__device__ __forceinline__ void cluster_meet() {
  if (BLOCKS > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}

// Where what lies at `address` here lies in block number `rank` of the cluster.
__device__ __forceinline__ u32 address_at(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void put_at(u32 there, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void put_at(u32 there, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(v.x), "f"(v.y)
               : "memory");
}
__device__ __forceinline__ float4 get_at(u32 there) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// What this thread, and those that it has met at a barrier, have written and read before is seen by
// who waits.
__device__ __forceinline__ void arrive_at(u32 there) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there)
               : "memory");
}
// For who only waits until what was read may be overwritten; without what orders other memory.
__device__ __forceinline__ void reads_done_at(u32 there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
__device__ __forceinline__ void cluster_barrier_wait(u64* bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
        "[%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
  } while (!done);
}

#endif
