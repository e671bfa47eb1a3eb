// What the card can do at best: reading memory, float32 and int8 arithmetic. Belongs to no op.
#include "cuda/common.cuh"

struct PeakArgs {
  const uint4* x;  // read
  i64 n;           // elements of x
  float* out;      // written only by a sum that no data has, so that nothing is optimized away
  int turns;       // of the arithmetic loops
  int seed;
};

__global__ void read_peak(const __grid_constant__ PeakArgs a) {
  const i64 step = global_threads();
  u32 sum = 0;
  for (i64 i = global_thread(); i < a.n; i += 8 * step) {
    uint4 v[8] = {};
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (i + j * step < a.n) v[j] = __ldcs(a.x + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x9e3779b9u) *a.out = 1;
}

// Eight independent chains a thread: more than the latency of one instruction needs.
__global__ void f32_peak(const __grid_constant__ PeakArgs a) {
  const float m = 1.f + a.seed * 1e-9f, c = threadIdx.x * 1e-3f;
  float v[8];
  for (int j = 0; j < 8; j++) v[j] = j;
  for (int i = 0; i < a.turns; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __fmaf_rn(v[j], m, c);
  }
  float sum = 0;
  for (int j = 0; j < 8; j++) sum += v[j];
  if (sum == -1.f) *a.out = sum;
}

__global__ void int8_peak(const __grid_constant__ PeakArgs a) {
  const int x = a.seed + threadIdx.x;
  int v[8];
  for (int j = 0; j < 8; j++) v[j] = j + x;
  for (int i = 0; i < a.turns; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __dp4a(v[j], x, v[j]);
  }
  int sum = 0;
  for (int j = 0; j < 8; j++) sum ^= v[j];
  if (sum == 0x9e3779b9) *a.out = sum;
}
