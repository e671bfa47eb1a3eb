// attention for few tokens: a block a (KV head, split, tile of rows).
#include "cuda/attention_decode.cuh"

template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_decode(const __grid_constant__ AttentionArgs a) {
  extern __shared__ float sums[];  // [kWarps][8 NT][HD + 2]
  const Part part = {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z};
  launch_dependents();
  bring_near<K, V, HD, NT>(a, part);
  wait_for_previous();
  attend<K, V, HD, NT>(a, part, sums);
}
