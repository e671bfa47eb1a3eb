// gated_delta: the gated delta rule, token by token, the state in registers.
//
// A block of four warps has 32 columns of a value head's state and goes through the rows of a
// sequence in order; columns need nothing of each other. Each warp brings a token's key and query
// to length one for itself; the next token's are on their way meanwhile.
#include "cuda/recurrent.cuh"

struct GatedDeltaArgs {
  gf_tensor dst, qkv, alpha, beta, state;
  const float *dt_bias, *rate;
  Sequences seqs;
  i32 n_head_k, dk, tiled;
  float eps;
};

constexpr int kWarps = 4, kColumns = 8 * kWarps;

// R: at least dk / 4, and a multiple of 8.
template <int R>
__global__ void __launch_bounds__(32 * kWarps)
    gated_delta(const __grid_constant__ GatedDeltaArgs a) {
  __shared__ float keys[kWarps][4 * R], queries[kWarps][4 * R];
  constexpr int MINE = R / 8;  // elements of a key that a lane brings
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4;
  const int dk = a.dk, dv = (int)a.dst.ne[0], n_head = (int)a.dst.ne[1];
  const int blocks = (dv + kColumns - 1) / kColumns;
  const int head = blockIdx.x / blocks;
  const int column = blockIdx.x % blocks * kColumns + warp * 8 + lane / 4;
  const int key_head = a.tiled ? head % a.n_head_k : head / (n_head / a.n_head_k);
  float* const key = keys[warp];
  float* const query = queries[warp];
  const float bias = a.dt_bias[head], rate = a.rate[head], divided = rsqrtf((float)dk);

  for (int i = blockIdx.y; i < a.seqs.n_tok; i += gridDim.y) {
    if (!a.seqs.known(i)) {
      if (part == 0 && column < dv) {
        reinterpret_cast<float*>(a.dst.row(head, i, 0))[column] = 0.0f;
      }
      continue;
    }
    if (!a.seqs.begins(i)) continue;
    const int end = a.seqs.end(i);
    float* const at =
        reinterpret_cast<float*>(a.state.row(a.seqs.slot[i], 0, 0)) + (i64)head * dk * dv;
    HeadState<R> s;
    s.load(at, dk, dv, column, part, a.seqs.pos[i] != 0);
    float k_next[MINE], q_next[MINE], v_next, alpha_next, beta_next;
    const auto fetch = [&](int t) {
      const float* const row = reinterpret_cast<const float*>(a.qkv.row(t, 0, 0));
#pragma unroll
      for (int j = 0; j < MINE; ++j) {
        const int e = lane + 32 * j;
        q_next[j] = e < dk ? row[key_head * dk + e] : 0.0f;
        k_next[j] = e < dk ? row[(a.n_head_k + key_head) * dk + e] : 0.0f;
      }
      v_next = column < dv ? row[2 * a.n_head_k * dk + head * dv + column] : 0.0f;
      alpha_next = reinterpret_cast<const float*>(a.alpha.row(t, 0, 0))[head];
      beta_next = reinterpret_cast<const float*>(a.beta.row(t, 0, 0))[head];
    };
    fetch(i);
    for (int t = i; t < end; ++t) {
      float q_squares = 0.0f, k_squares = 0.0f;
#pragma unroll
      for (int j = 0; j < MINE; ++j) {
        q_squares = fmaf(q_next[j], q_next[j], q_squares);
        k_squares = fmaf(k_next[j], k_next[j], k_squares);
      }
      q_squares = warp_reduce(q_squares, Add());
      k_squares = warp_reduce(k_squares, Add());
      const float q_scale = divided / sqrtf(q_squares + a.eps);
      const float k_scale = 1.0f / sqrtf(k_squares + a.eps);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < MINE; ++j) {
        query[lane + 32 * j] = q_next[j] * q_scale;
        key[lane + 32 * j] = k_next[j] * k_scale;
      }
      __syncwarp();
      const float v = v_next, decay = expf(rate * softplus(alpha_next + bias));
      const float share = 1.0f / (1.0f + expf(-beta_next));
      if (t + 1 < end) fetch(t + 1);
      float recalled = 0.0f, read = 0.0f;
#pragma unroll
      for (int j = 0; j < R; ++j) recalled = fmaf(key[4 * j + part], s.v[j], recalled);
      const float delta = (v - decay * s.joined(recalled)) * share;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s.v[j] = fmaf(key[4 * j + part], delta, decay * s.v[j]);
        read = fmaf(query[4 * j + part], s.v[j], read);
      }
      read = s.joined(read);
      if (part == 0 && column < dv) {
        reinterpret_cast<float*>(a.dst.row(head, t, 0))[column] = read;
      }
    }
    s.store(at, dk, dv, column, part);
  }
}
