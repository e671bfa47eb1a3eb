// advance: the end of a decode step that needs no host. The sampled token becomes the next step's
// input, position, generator and history move on, and the token goes into a ring in the host's
// memory. One block.
#include "cuda/dependent.cuh"

struct AdvanceArgs {
  const i32* token;  // sampled
  i32* tokens;
  i32* pos;
  u64* rng;      // seed, step
  i32* history;  // h ids, newest last
  u64* ring;     // size entries, a power of two, in the host's memory
  i64 h, size;
};

__global__ void __launch_bounds__(256) advance(const __grid_constant__ AdvanceArgs a) {
  launch_dependents();
  wait_for_previous();
  const i32 token = __ldcg(a.token);
  if (threadIdx.x == 0) {
    const i32 pos = __ldcg(a.pos) + 1;
    // One store, so that the host never sees a position without its token.
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(a.ring + (pos & (a.size - 1))),
                 "l"((u64)(u32)pos << 32 | (u32)token)
                 : "memory");
    *a.tokens = token;
    *a.pos = pos;
    a.rng[1] = __ldcg(a.rng + 1) + 1;
  }
  for (i64 base = 0; base < a.h; base += blockDim.x) {
    const i64 i = base + threadIdx.x;
    const i32 next = i + 1 < a.h ? __ldcg(a.history + i + 1) : token;
    __syncthreads();
    if (i < a.h) a.history[i] = next;
    __syncthreads();
  }
}
