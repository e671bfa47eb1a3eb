// What the attention kernels share: arguments, which keys are visible, scores, and how the parts of
// a token that several blocks computed are joined.
#pragma once

#include "cuda/arrivals.cuh"
#include "cuda/dependent.cuh"
#include "cuda/exp2.cuh"
#include "cuda/next_columns.cuh"
#include "cuda/next_fragments.cuh"

struct AttentionArgs {
  gf_tensor dst, q, k, v, pos, seq, table;
  float scale, max_bias, softcap;
  i32 window, n_single;
  i32 n_splits;
  float* parts;  // [slot][split][row][width + 2]: a sum, the largest score and the total weight
  const float* sinks;  // of each head, or null
  FastDiv group;       // heads of q a KV head
  i32 tile_rows;       // of a slot
  FastDiv slots;       // of a token
  i32 tiles;           // of attention_prefill_few
  i32 beside;  // whether the launch after, or for single tokens the one before, needs no order
  i32 early;   // whether attention_decode_listed has all single tokens of the run
  // Of attention_decode_listed: the results once more, for the product behind, as int8 or float16.
  RecordsPlace next;
  FragmentsPlace next_floats;
};

constexpr int kPage = 64;    // keys; PAGE of plan_key.py
constexpr int kChunk = 128;  // splits share the visible keys in such pieces

__device__ __forceinline__ float alibi_slope(int h, int n_head, float max_bias) {
  if (max_bias <= 0.0f) return 0.0f;
  const int p = 1 << (31 - __clz(n_head));
  const float power = h < p ? (float)(h + 1) / (float)p : (float)(2 * (h - p) + 1) / (float)(2 * p);
  return exp2_normal(-max_bias * power);
}

// A dot product's score times log2(e), so that its weight is a power of two. slope2: the head's
// slope times log2(e).
__device__ __forceinline__ float score_log2(const AttentionArgs& a, float dot, float slope2,
                                            int distance) {
  float s = dot * a.scale;
  if (a.softcap > 0.0f) {  // tanh x = 1 - 2 / (1 + e^2x); the library's takes far more room
    const float e = exp2_normal(2.0f * kLog2E * __fdividef(s, a.softcap));
    s = a.softcap - __fdividef(2.0f * a.softcap, 1.0f + e);
  }
  return fmaf(-slope2, (float)distance, s * kLog2E);
}

// The weight of a head's sink, which is one more score, of a key without a value. best: the largest
// score of those that are seen, times log2(e).
__device__ __forceinline__ float sink_weight(const AttentionArgs& a, int head, float best) {
  return a.sinks ? exp2_normal(fmaf(a.sinks[head], kLog2E, -best)) : 0.0f;
}

// -- which keys ----------------------------------------------------------------------------------

// Where a token stands; seq is a row of the table. Both are negative for one that sees nothing.
struct Token {
  int pos, seq;

  __device__ bool operator==(const Token& other) const {
    return pos == other.pos && seq == other.seq;
  }
};

// Past the first-level cache: the decode kernel also reads these before the kernels ahead have
// ended.
__device__ __forceinline__ Token token_at(const AttentionArgs& a, i64 i) {
  const int pos = __ldcg(reinterpret_cast<const i32*>(a.pos.data + i * a.pos.nb[0]));
  const int seq = __ldcg(reinterpret_cast<const i32*>(a.seq.data + i * a.seq.nb[0]));
  return pos >= 0 && (u32)seq < (u32)a.table.ne[1] ? Token{pos, seq} : Token{-1, -1};
}

// The page with the keys [64 i, 64 i + 64) of a sequence, or -1. NEAR: from the first-level cache,
// once the kernels ahead have ended.
template <bool NEAR = false>
__device__ __forceinline__ int page_at(const AttentionArgs& a, int seq, int i) {
  const char* const row = a.table.data + seq * a.table.nb[1];
  const i32* const at = reinterpret_cast<const i32*>(row + i * a.table.nb[0]);
  const int page = NEAR ? *at : __ldcg(at);
  return (u32)page < (u32)(a.k.ne[2] >> 6) ? page : -1;
}

// Keys [first, last]; none if last < first.
struct Span {
  int first, last;
};

__device__ __forceinline__ Span visible_to(const AttentionArgs& a, int pos) {
  const int first = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
  return {first, min(pos, (int)a.table.ne[0] * kPage - 1)};
}

// How a token's keys are cut: split i has the chunks [first + i each, first + (i + 1) each) of the
// sequence. By the token's own position alone, so that its result is the same in every batch.
struct Splits {
  int first, each, n;  // chunks, chunks and splits, of which there is at least one

  // Of split i: its keys, without those after the last that is seen.
  __device__ __forceinline__ int begin(int i) const { return (first + i * each) * kChunk; }
  __device__ __forceinline__ int end(int i, Span s) const { return min(begin(i + 1), s.last + 1); }
};

// ALONE: chunks that one block does sooner than several can join their parts. LEAST: of a split.
template <int ALONE, int LEAST>
__device__ __forceinline__ Splits splits_of(const AttentionArgs& a, Span s) {
  const int first = s.first / kChunk, chunks = max(s.last / kChunk - first + 1, 1);
  if (chunks <= ALONE) return {first, ALONE, 1};
  const int each = max((chunks + a.n_splits - 1) / a.n_splits, LEAST);
  return {first, each, (chunks + each - 1) / each};
}

// -- joining -------------------------------------------------------------------------------------

constexpr int kTickets = 8192;     // slots; mirrored in attention.py
__device__ u32 tickets[kTickets];  // blocks of a slot that have arrived; zero between launches

__device__ __forceinline__ float* part_of(const AttentionArgs& a, int slot, int split, int row,
                                          int rows, int width) {
  return a.parts + (((i64)slot * a.n_splits + split) * rows + row) * (width + 2);
}

// A row's weighted values, relative to its largest score so far. Parts are added in the order of
// the splits, wherever they were computed.
struct Fold {
  float top = -infinity(), sum = 0.0f, total = 0.0f;

  // By what the sums so far and a part's are multiplied.
  struct Scales {
    float keep, take;
    __device__ __forceinline__ float add(float so_far, float y) const {
      return fmaf(take, y, so_far * keep);
    }
  };
  __device__ __forceinline__ Scales scales(float best) const {
    const float new_top = fmaxf(top, best), base = new_top == -infinity() ? 0.0f : new_top;
    return {exp2_normal(top - base), exp2_normal(best - base)};
  }
  __device__ __forceinline__ void add_weights(const Scales& by, float best, float weights) {
    total = by.add(total, weights);
    top = fmaxf(top, best);
  }
  __device__ __forceinline__ void add(float best, float y, float weights) {
    const Scales by = scales(best);
    sum = by.add(sum, y);
    add_weights(by, best, weights);
  }
  // Nothing where no key was seen. head: whose sink takes its share.
  __device__ __forceinline__ float inverse(const AttentionArgs& a, int head) const {
    return total > 0.0f ? 1.0f / (total + sink_weight(a, head, top)) : 0.0f;
  }
  __device__ __forceinline__ float value(const AttentionArgs& a, int head) const {
    return sum * inverse(a, head);
  }
};

// Called by every thread once all parts are written: adds them up. head_of(row); store(row, i,
// value).
template <class HeadOf, class Store>
__device__ __forceinline__ void join(const AttentionArgs& a, int slot, int n_active, int rows,
                                     int rows_used, int width, HeadOf head_of, Store store) {
  const i64 step = (i64)rows * (width + 2);
  for (int i = threadIdx.x; i < rows_used * width; i += blockDim.x) {
    const int row = i / width, d = i - row * width;
    const float* const parts = part_of(a, slot, 0, row, rows, width);
    Fold fold;
    constexpr int BATCH = 8;  // loaded at once
    for (int s0 = 0; s0 < n_active; s0 += BATCH) {
      float y[BATCH], best[BATCH], weights[BATCH];
#pragma unroll
      for (int s = 0; s < BATCH; ++s) {
        const float* const part = parts + min(s0 + s, n_active - 1) * step;
        y[s] = __ldcg(part + d);
        best[s] = s0 + s < n_active ? __ldcg(part + width) : -infinity();
        weights[s] = __ldcg(part + width + 1);
      }
#pragma unroll
      for (int s = 0; s < BATCH; ++s) fold.add(best[s], y[s], weights[s]);
    }
    store(row, d, fold.value(a, head_of(row)));
  }
}
