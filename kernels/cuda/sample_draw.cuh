// Steps 3 to 6 of sample for any top_k, by a block that has the candidates in order.
//
// The specification's sums are rounded one after the other. While a sum stays between two powers of
// two, it is a whole number of units in its last place, and adding a weight adds a whole number of
// them: which one depends on the sum only for a weight that lies half way, which rounds to even. So
// what some weights add is a pair of numbers, for a sum that is even and for one that is odd, and
// such pairs are scanned by all threads at once.
#pragma once

#include "cuda/sample.cuh"

constexpr int kEach = 8;  // weights of a thread at a time

struct DrawShared {
  int2 warps[kThreads / 32];
  float sum;
  int stop, first, kept;
};

// What some weights add to a sum, in units in its last place: where it is even, and where it is
// odd. More than kPast is as good as any: the sum has passed the next power of two then.
constexpr int kPast = 1 << 28;
__device__ __forceinline__ int2 then(int2 a, int2 b) {
  return make_int2(min(a.x + (a.x & 1 ? b.y : b.x), kPast),
                   min(a.y + (a.y & 1 ? b.x : b.y), kPast));
}

// What one weight adds; per_unit: units in 1.
__device__ __forceinline__ int2 units_of(float weight, float per_unit) {
  const float units = weight * per_unit, whole = floorf(units), rest = units - whole;
  const int low = (int)whole;
  if (rest == 0.5f) return make_int2(low + (low & 1), low + (~low & 1));
  return rest > 0.5f ? make_int2(low + 1, low + 1) : make_int2(low, low);
}

// What the weights of the threads before this one add.
__device__ __forceinline__ int2 scan(int2 mine, DrawShared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto in_warp = [&](int2 x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int2 before =
          make_int2(__shfl_up_sync(kAllLanes, x.x, step), __shfl_up_sync(kAllLanes, x.y, step));
      if (lane >= step) x = then(before, x);
    }
    return x;
  };
  const auto before = [&](int2 x) {
    const int2 y = make_int2(__shfl_up_sync(kAllLanes, x.x, 1), __shfl_up_sync(kAllLanes, x.y, 1));
    return lane > 0 ? y : make_int2(0, 0);
  };
  mine = in_warp(mine);
  __syncthreads();
  if (lane == 31) s.warps[warp] = mine;
  __syncthreads();
  const int2 warps = before(in_warp(s.warps[lane]));
  const int2 theirs =
      make_int2(__shfl_sync(kAllLanes, warps.x, warp), __shfl_sync(kAllLanes, warps.y, warp));
  return then(theirs, before(mine));
}

// A weight below 2^-26 of a sum changes neither it nor any later sum of falling weights (give or
// take a few units in the last place). The first weight is 1, so no sum is smaller: weights of
// values further below the largest than this never count.
constexpr float kReach = 18.5f;
constexpr float kTiny = 1.4901161193847656e-8f;  // 2^-26

// sums[i]: of the first i + 1 weights, rounded in order. Returns how many were summed: the weights
// after them change nothing. The last sum is left in s.sum.
template <class Weight>
__device__ i64 sum_up(i64 count, float* sums, DrawShared& s, Weight weight) {
  const float first = weight(0);
  float sum = first;
  if (threadIdx.x == 0) s.sum = sums[0] = first;
  i64 done = 1;
  for (i64 base = 0; base < count && first > 0.0f; base += kThreads * kEach) {
    const i64 begin = base + threadIdx.x * kEach;
    float w[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) w[i] = begin + i < count ? weight(begin + i) : 0.0f;
    const i64 end = count < base + kThreads * kEach ? count : base + kThreads * kEach;
    __syncthreads();
    if (threadIdx.x == 0) s.kept = w[0] < sum * kTiny;
    __syncthreads();
    if (s.kept) break;
    while (done < end) {
      // The unit is 2^(e - 23), e being the sum's exponent; it has 24 bits of units then.
      const int exponent = (int)(gf_bits_of(sum) >> 23) - 127;
      const float per_unit = gf_float_of((u32)(127 + 23 - exponent) << 23);
      const float unit = gf_float_of((u32)(127 - 23 + exponent) << 23);
      const int at = (int)(sum * per_unit);
      int2 mine = make_int2(0, 0), adds[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        adds[i] = begin + i < done ? make_int2(0, 0) : units_of(w[i], per_unit);
        mine = then(mine, adds[i]);
      }
      const int2 before = scan(mine, s);
      if (threadIdx.x == 0) s.stop = 0x7FFFFFFF;
      __syncthreads();
      int so_far = at + (at & 1 ? before.y : before.x), past = kEach;
      float last = (float)so_far * unit;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (past < kEach) continue;
        const int next = so_far + (so_far & 1 ? adds[i].y : adds[i].x);
        if (next >= 1 << 24) {  // rounded to another unit, by an addition of its own
          past = i;
          continue;
        }
        so_far = next;
        last = (float)so_far * unit;
        if (begin + i >= done && begin + i < end) sums[begin + i] = last;
      }
      if (past < kEach && begin + past < end) atomicMin(&s.stop, (int)(begin + past - base));
      __syncthreads();
      const int stop = s.stop;
      if (stop == 0x7FFFFFFF) {
        if (threadIdx.x == kThreads - 1) s.sum = last;
        done = end;
      } else {
        if (threadIdx.x == stop / kEach) {
          float added = 0.0f;
#pragma unroll
          for (int i = 0; i < kEach; ++i) added = i == stop % kEach ? w[i] : added;
          s.sum = sums[base + stop] = gf_add(last, added);
        }
        done = base + stop + 1;
      }
      __syncthreads();
      sum = s.sum;
    }
  }
  __syncthreads();
  return done;
}

// The first i whose sum of weights up to and including it satisfies enough(sum, total), or the last
// one. Sums rise, so that those after one that does satisfy it too.
template <class Weight, class Enough>
__device__ i64 find(i64 count, float* sums, DrawShared& s, Weight weight, Enough enough) {
  const i64 summed = sum_up(count, sums, s, weight);
  const float total = s.sum;
  // Of stretches as many as threads, then within one.
  i64 low = 0, high = summed;
  while (high > low) {
    const i64 step = (high - low + kThreads - 1) / kThreads;
    const i64 last = low + (threadIdx.x + 1) * step - 1;
    const int before = __syncthreads_count(last < high && !enough(sums[last], total));
    low += before * step;
    if (step == 1) break;
    high = low + step < high ? low + step : high;
  }
  return low < summed ? low : count - 1;
}

// How far below the largest value a candidate can matter to steps 4 to 6.
__device__ __forceinline__ float reach(const Settings& set) {
  if (set.top_p < 1.0f) return kReach;  // what is left then lies within
  const float drawn = kReach * set.temp;
  return set.min_p > 0.0f ? fminf(drawn, fmaxf(0.01f - __logf(set.min_p), 0.01f)) : drawn;
}

// Steps 3 to 6; kept: candidates that can matter. top: the largest value.
template <class Candidates>
__device__ i64 draw_large(const Candidates& c, i64 kept, const Settings& set, float top, float u,
                          float* sums, DrawShared& s) {
  const i64 k = whole(set.top_k);
  i64 count = k > 0 && k < kept ? k : kept;
  const auto below = [&](i64 i) { return gf_add(c.value(i), -top); };
  const auto plain = [&](i64 i) { return exp32(below(i)); };
  if (set.top_p < 1.0f) {
    count = 1 + find(count, sums, s, plain,
                     [&set](float sum, float total) { return sum >= gf_mul(set.top_p, total); });
  }
  if (set.min_p > 0.0f) {
    __syncthreads();
    if (threadIdx.x == 0) s.kept = 0;
    __syncthreads();
    int mine = 0;
    for (i64 i = threadIdx.x; i < count; i += kThreads) mine += plain(i) >= set.min_p;
    if (mine) atomicAdd(&s.kept, mine);
    __syncthreads();
    count = s.kept > 1 ? s.kept : 1;
  }
  const auto tempered = [&](i64 i) { return exp32(gf_div(below(i), set.temp)); };
  const i64 i = find(count, sums, s, tempered,
                     [u](float sum, float total) { return sum > gf_mul(u, total); });
  return c.index(i);
}
