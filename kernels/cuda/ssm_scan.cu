// ssm_scan: the selective scan of Mamba 2, token by token, the state in registers.
//
// A block of four warps has 32 columns of a head's state and goes through the rows of a sequence in
// order, as in gated_delta.cu.
#include "cuda/recurrent.cuh"

struct SsmScanArgs {
  gf_tensor dst, xbc, dt, state;
  const float *dt_bias, *rate, *skip;
  Sequences seqs;
  i32 n_group, n_state;
};

constexpr int kWarps = 4, kColumns = 8 * kWarps;

// R: at least n_state / 4, and a multiple of 8.
template <int R>
__global__ void __launch_bounds__(32 * kWarps) ssm_scan(const __grid_constant__ SsmScanArgs a) {
  __shared__ float keys[kWarps][4 * R], queries[kWarps][4 * R];
  constexpr int MINE = R / 8;  // elements of B and C that a lane brings
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4;
  const int n_state = a.n_state, hd = (int)a.dst.ne[0], n_head = (int)a.dst.ne[1];
  const int blocks = (hd + kColumns - 1) / kColumns;
  const int head = blockIdx.x / blocks, group = head / (n_head / a.n_group);
  const int column = blockIdx.x % blocks * kColumns + warp * 8 + lane / 4;
  float* const key = keys[warp];
  float* const query = queries[warp];
  const float bias = a.dt_bias[head], rate = a.rate[head], skip = a.skip[head];

  for (int i = blockIdx.y; i < a.seqs.n_tok; i += gridDim.y) {
    if (!a.seqs.known(i)) {
      if (part == 0 && column < hd) {
        reinterpret_cast<float*>(a.dst.row(head, i, 0))[column] = 0.0f;
      }
      continue;
    }
    if (!a.seqs.begins(i)) continue;
    const int end = a.seqs.end(i);
    float* const at =
        reinterpret_cast<float*>(a.state.row(a.seqs.slot[i], 0, 0)) + (i64)head * n_state * hd;
    HeadState<R> s;
    s.load(at, n_state, hd, column, part, a.seqs.pos[i] != 0);
    float b_next[MINE], c_next[MINE], x_next, dt_next;
    const auto fetch = [&](int t) {
      const float* const row = reinterpret_cast<const float*>(a.xbc.row(t, 0, 0));
      const float* const b = row + n_head * hd + group * n_state;
#pragma unroll
      for (int j = 0; j < MINE; ++j) {
        const int e = lane + 32 * j;
        b_next[j] = e < n_state ? b[e] : 0.0f;
        c_next[j] = e < n_state ? b[a.n_group * n_state + e] : 0.0f;
      }
      x_next = column < hd ? row[head * hd + column] : 0.0f;
      dt_next = reinterpret_cast<const float*>(a.dt.row(t, 0, 0))[head];
    };
    fetch(i);
    for (int t = i; t < end; ++t) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < MINE; ++j) {
        key[lane + 32 * j] = b_next[j];
        query[lane + 32 * j] = c_next[j];
      }
      __syncwarp();
      const float x = x_next, step = softplus(dt_next + bias), decay = expf(step * rate);
      if (t + 1 < end) fetch(t + 1);
      float read = 0.0f;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s.v[j] = fmaf(key[4 * j + part], step * x, decay * s.v[j]);
        read = fmaf(query[4 * j + part], s.v[j], read);
      }
      read = s.joined(read);
      if (part == 0 && column < hd) {
        reinterpret_cast<float*>(a.dst.row(head, t, 0))[column] = fmaf(skip, x, read);
      }
    }
    s.store(at, n_state, hd, column, part);
  }
}
