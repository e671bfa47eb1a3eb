// sample: the next token from its logits, the same on every backend to the bit. The order of every
// operation is defined in engine/ops/sample.py, whose step numbers this file uses. One block.
#include "cuda/select.cuh"

struct SampleArgs {
  gf_tensor dst, logits, settings, rng, history;
  char* scratch;  // 3 n floats or indices
};

struct Settings {  // the operand's layout
  float temp, top_k, top_p, min_p, repeat_penalty, repeat_last_n;
};

// Truncated; out of range goes to the nearest end.
__device__ i64 whole(float x) { return (i64)fminf(fmaxf(x, -2147483648.0f), 2147483648.0f); }

__device__ float exp32(float x) {
  if (!(x >= -87.0f)) return 0.0f;
  const float n = rintf(gf_mul(x, 1.44269504f));
  const float r = gf_add(gf_add(x, -gf_mul(n, 0.693359375f)), -gf_mul(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = gf_add(gf_mul(p, r), 1.3981999507e-3f);
  p = gf_add(gf_mul(p, r), 8.3334519073e-3f);
  p = gf_add(gf_mul(p, r), 4.1665795894e-2f);
  p = gf_add(gf_mul(p, r), 1.6666665459e-1f);
  p = gf_add(gf_mul(p, r), 5.0000001201e-1f);
  const float y = gf_add(gf_add(gf_mul(p, gf_mul(r, r)), r), 1.0f);
  return gf_mul(y, gf_float_of((u32)((int)n + 127) << 23));
}

__device__ float uniform(u64 seed, u64 step) {
  u64 z = seed + (step + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return (float)(z >> 40) * 5.9604644775390625e-8f;
}

struct Shared {
  union {
    SelectShared select;
    SortShared sort;
  };
  float weights[kThreads];
  float sum;
  int added;  // weights added so far, or where adding stopped
  bool done;
  int first, kept;
};

// The candidates in order: from the selection in shared memory, or from a sort of all.
struct Candidates {
  const float* l;
  const i32* sorted;  // null: in shared memory
  const u64* keys;
  i64 count;
  float top;  // the largest value

  __device__ i64 id(i64 i) const { return sorted ? sorted[i] : index_of(keys[i]); }
  __device__ float below(i64 i) const { return gf_add(l[id(i)], -top); }
};

// The first i whose sum of weights up to and including it satisfies enough(sum, total), or the last
// one. sums: room for one float a candidate.
//
// The sums are rounded in order, so one thread adds. Weights fall as i grows, give or take a few
// units in the last place: once a weight is below 2^-26 of the sum, neither it nor any after it can
// change the sum any more, and adding stops.
template <class Weight, class Enough>
__device__ i64 find(const Candidates& c, float* sums, Shared& s, Weight weight, Enough enough) {
  __syncthreads();
  if (threadIdx.x == 0) {
    s.sum = 0.0f;
    s.added = 0;
    s.done = false;
    s.first = 0x7FFFFFFF;
  }
  __syncthreads();
  for (i64 base = 0; base < c.count && !s.done; base += kThreads) {
    const i64 i = base + threadIdx.x;
    if (i < c.count) s.weights[threadIdx.x] = weight(i);
    __syncthreads();
    if (threadIdx.x == 0) {
      const int n = (int)(c.count - base < kThreads ? c.count - base : kThreads);
      float sum = s.sum;
      int k = 0;
      for (; k < n; ++k) {
        const float w = s.weights[k];
        if (w < sum * 1.4901161193847656e-8f) {
          s.done = true;
          break;
        }
        sum = gf_add(sum, w);
        s.weights[k] = sum;
      }
      s.sum = sum;
      s.added += k;
    }
    __syncthreads();
    if (i < s.added) sums[i] = s.weights[threadIdx.x];
    __syncthreads();
  }
  const float total = s.sum;
  for (i64 i = threadIdx.x; i < s.added; i += kThreads) {
    if (enough(sums[i], total)) {
      atomicMin(&s.first, (int)i);
      break;
    }
  }
  __syncthreads();
  return s.first < 0x7FFFFFFF ? s.first : c.count - 1;
}

__global__ void __launch_bounds__(1024) sample(const __grid_constant__ SampleArgs a) {
  __shared__ Shared s;
  const i64 n = a.logits.ne[0], h = a.history.ne[0];
  const float* const logits = reinterpret_cast<const float*>(a.logits.data);
  const Settings set = *reinterpret_cast<const Settings*>(a.settings.data);
  const u64* const rng = reinterpret_cast<const u64*>(a.rng.data);
  const i32* const history = reinterpret_cast<const i32*>(a.history.data);
  float* const l = reinterpret_cast<float*>(a.scratch);
  i32* const order = reinterpret_cast<i32*>(l + n);
  i32* const other = order + n;
  i32* const out = reinterpret_cast<i32*>(a.dst.data);

  // Step 1. A broken model's NaN is never chosen before a number. A token met twice is penalized
  // once, for the original logit is read.
  for (i64 i = threadIdx.x; i < n; i += kThreads)
    l[i] = logits[i] == logits[i] ? logits[i] : -infinity();
  __syncthreads();
  const i64 last = whole(set.repeat_last_n);
  if (set.repeat_penalty != 1.0f && last != 0) {
    for (i64 i = (last < 0 || last > h ? 0 : h - last) + threadIdx.x; i < h; i += kThreads) {
      const i32 t = history[i];
      if (t < 0 || t >= n) continue;
      l[t] = logits[t] > 0.0f ? gf_div(logits[t], set.repeat_penalty)
                              : gf_mul(logits[t], set.repeat_penalty);
    }
    __syncthreads();
  }

  // Step 2.
  if (set.temp <= 0.0f) {
    const i64 best = block_argmax(l, n, s.select);
    if (threadIdx.x == 0) *out = (i32)best;
    return;
  }
  // Step 3.
  const i64 k = whole(set.top_k);
  Candidates c{l, nullptr, s.select.keys, k > 0 && k < n ? k : n, 0.0f};
  if (c.count <= kMaxSelect) {
    select_top(l, n, (int)c.count, s.select);
  } else {
    sort_all(l, n, order, other, s.sort);
    c.sorted = order;
    __syncthreads();
  }
  c.top = l[c.id(0)];
  float* const sums = reinterpret_cast<float*>(other);
  // Step 4.
  const auto plain = [&c](i64 i) { return exp32(c.below(i)); };
  if (set.top_p < 1.0f) {
    c.count = 1 + find(c, sums, s, plain,
                       [&set](float sum, float total) { return sum >= gf_mul(set.top_p, total); });
  }
  // Step 5.
  if (set.min_p > 0.0f) {
    __syncthreads();
    if (threadIdx.x == 0) s.kept = 0;
    __syncthreads();
    int mine = 0;
    for (i64 i = threadIdx.x; i < c.count; i += kThreads) mine += plain(i) >= set.min_p;
    if (mine) atomicAdd(&s.kept, mine);
    __syncthreads();
    c.count = s.kept > 1 ? s.kept : 1;
  }
  // Step 6.
  const float u = uniform(rng[0], rng[1]);
  const auto tempered = [&](i64 i) { return exp32(gf_div(c.below(i), set.temp)); };
  const i64 chosen =
      find(c, sums, s, tempered, [u](float sum, float total) { return sum > gf_mul(u, total); });
  if (threadIdx.x == 0) *out = (i32)c.id(chosen);
}
