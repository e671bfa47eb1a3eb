// Which experts a row of logits goes to, and what share each of them has: a warp a row, whose
// scores lie in shared memory. What route.cu and router.cu share.
#pragma once

#include "cuda/dependent.cuh"

constexpr int kSoftmax = 0, kSigmoid = 1, kChosen = 2;  // SCORES of engine/ops/route.py

struct Choice {
  i32 n_used, score, n_group, n_group_used;
};
struct Shares {
  i32 score, norm;
  float scale;
};

// The scores of a row of n logits in s.
__device__ __forceinline__ void scores(const float* x, int n, int score, int lane, float* s) {
  if (score != kSoftmax) {
    for (int i = lane; i < n; i += 32) {
      const float v = load_fresh(x + i);
      s[i] = score == kSigmoid ? 1.0f / (1.0f + expf(-v)) : v;
    }
  } else {
    float top = -infinity(), sum = 0.0f;
    for (int i = lane; i < n; i += 32) {
      s[i] = load_fresh(x + i);
      top = fmaxf(top, s[i]);
    }
    top = warp_reduce(top, Max());
    for (int i = lane; i < n; i += 32) {
      s[i] = expf(s[i] - top);
      sum += s[i];
    }
    sum = warp_reduce(sum, Add());
    for (int i = lane; i < n; i += 32) s[i] /= sum;
  }
  __syncwarp();
}

// Whole numbers in the order of floats, what is no number first; none is zero.
__device__ __forceinline__ u32 key_of(float x) {
  const u32 bits = gf_bits_of(x + 0.0f);  // the zeros are equal
  if (x != x) return 1;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// put(j, i) by one lane for the `count` best of s[0..n), in falling order, the lower index first on
// ties. Every lane keeps the best of its own elements; s is used up.
template <class F>
__device__ __forceinline__ void take_best(float* s, int n, int count, int lane, const F& put) {
  u32* const keys = reinterpret_cast<u32*>(s);
  u32 top;
  int at;
  const auto look = [&] {
    top = 0;
    at = n;
    for (int i = lane; i < n; i += 32) {
      if (keys[i] > top) {
        top = keys[i];
        at = i;
      }
    }
  };
  for (int i = lane; i < n; i += 32) keys[i] = key_of(s[i]);
  look();
  for (int j = 0; j < count; ++j) {
    const u32 best = __reduce_max_sync(kAllLanes, top);
    const int where = __reduce_min_sync(kAllLanes, top == best ? at : n);
    if (lane == 0) put(j, where);
    if (top == best && at == where && where < n) {
      keys[where] = 0;
      look();
    }
  }
  __syncwarp();
}

// put(j, i) for the experts of a row of n scores. s: behind them 2 n_group floats; it is used up.
template <class F>
__device__ __forceinline__ void choose(const Choice& c, float* s, int n, const float* bias,
                                       int lane, const F& put) {
  const int groups = c.n_group, size = n / groups;
  float* const of_group = s + n;
  float* const taken = of_group + groups;
  if (bias) {
    for (int i = lane; i < n; i += 32) s[i] += bias[i];
    __syncwarp();
  }
  if (groups > 1) {
    for (int g = lane; g < groups; g += 32) {
      float best = -infinity(), second = -infinity();
      for (int i = g * size; i < (g + 1) * size; ++i) {
        second = fmaxf(second, fminf(best, s[i]));
        best = fmaxf(best, s[i]);
      }
      of_group[g] = bias && size > 1 ? best + second : best;
      taken[g] = 0.0f;
    }
    __syncwarp();
    take_best(of_group, groups, c.n_group_used, lane, [&](int, int g) { taken[g] = 1.0f; });
    for (int i = lane; i < n; i += 32) {
      if (taken[i / size] == 0.0f) s[i] = -infinity();
    }
    __syncwarp();
  }
  take_best(s, n, c.n_used, lane, put);
}

// The shares of a row's experts, of which s has the scores.
__device__ __forceinline__ void weigh(const Shares& p, const float* s, int n, const i32* ids,
                                      int used, int lane, float* out) {
  float top = -infinity(), sum = 0.0f;
  for (int j = lane; j < used; j += 32) {
    if ((u32)ids[j] < (u32)n) top = fmaxf(top, s[ids[j]]);
  }
  top = warp_reduce(top, Max());
  const auto share = [&](int j) {
    if ((u32)ids[j] >= (u32)n) return 0.0f;
    return p.score == kChosen ? expf(s[ids[j]] - top) : s[ids[j]];
  };
  for (int j = lane; j < used; j += 32) sum += share(j);
  sum = warp_reduce(sum, Add());
  const bool divides = (p.norm || p.score == kChosen) && sum != 0.0f;
  for (int j = lane; j < used; j += 32) {
    out[j] = (divides ? share(j) / sum : share(j)) * p.scale;
  }
}
