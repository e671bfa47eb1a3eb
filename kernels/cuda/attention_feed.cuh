// How keys and values come to the decode kernel: each warp copies its own, 16 keys at a time, into
// shared memory, some copies ahead of what it works on. What is on its way needs no registers and
// no room in the first-level cache.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/attention_mma.cuh"

constexpr int kWarps = 8;
constexpr int kKeys = 16;  // of a warp at a time: a group, which lies within a page
static_assert(kWarps * kKeys == kChunk, "a chunk is one pass of the block");
static_assert(kPage % kKeys == 0 && kChunk % kPage == 0, "a group has one page");

__device__ __forceinline__ int warp_index() { return threadIdx.x / 32; }

// The keys of a group, or its values, in shared memory. Rows of 16-bit floats lie such that lanes
// of the products' layouts read from different banks; quantized ones as in the cache.
template <class C, int HD, bool VALUES>
struct GroupRows {
  static constexpr bool kPlain = CacheRow<C>::kPlain;
  static constexpr int ROW = kPlain ? 2 * HD : HD / 32 * 34;
  static constexpr int BYTES = kKeys * ROW;
  static constexpr int UNIT = kPlain ? 16 : HD == 128 ? 8 : 4;  // bytes of a copy
  static constexpr int UNITS = ROW / UNIT;
  static_assert(ROW % UNIT == 0, "rows are whole units");

  static __device__ __forceinline__ int place(int r, int unit) {
    if (!kPlain) return r * ROW + unit * UNIT;
    return r * ROW + UNIT * (unit ^ (VALUES ? r & 6 : (r & 1) << 2));
  }

  // Keys [j, j + 16). Zeros where nobody sees any, as memory there may hold NaN.
  static __device__ __forceinline__ void copy(char* to, const char* base, i64 stride, int page,
                                              int j, Span seen) {
    const int lane = threadIdx.x % 32;
    const char* const from = base + ((i64)max(page, 0) * kPage + j % kPage) * stride;
#pragma unroll
    for (int i = 0; i < (kKeys * UNITS + 31) / 32; ++i) {
      const int n = 32 * i + lane, r = n / UNITS, unit = n % UNITS;
      if (kKeys * UNITS % 32 != 0 && r >= kKeys) continue;
      const bool there = page >= 0 && j + r >= seen.first && j + r <= seen.last;
      const u32 at = shared_address(to + place(r, unit));
      if constexpr (kPlain) {
        copy16_or_zeros(at, from + r * stride + UNIT * unit, there);
      } else {
        copy_or_zeros<UNIT>(at, from + r * stride + UNIT * unit, there);
      }
    }
  }

  // Elements [d, d + 8) of row r, d % 8 == 0.
  static __device__ __forceinline__ uint4 read8(const char* rows, int r, int d) {
    if constexpr (kPlain) {
      return *reinterpret_cast<const uint4*>(rows + place(r, d / 8));
    } else {
      return CacheRow<C>::read8(rows + r * ROW, d);
    }
  }
};

// A warp's copies, in a ring of HALVES places for the keys or the values of a group. A stretch of
// keys of one sequence follows another; next(feed) opens it, or says that there is none.
template <class K, class V, int HD, int HALVES>
struct Feed {
  typedef GroupRows<K, HD, false> Keys;
  typedef GroupRows<V, HD, true> Values;
  static constexpr int HALF = Keys::BYTES > Values::BYTES ? Keys::BYTES : Values::BYTES;
  static constexpr int BYTES = HALVES * HALF;  // of a warp

  char* ring;
  int kv_head, seq;
  int j, end;               // // the group to ask for next, and where the stretch ends
  Span seen;                // of the sequence
  int pages, entry;         // lane i has the page of entry + i of the sequence's table
  int into, from;           // places of the ring: to fill next, and to read next
  bool values;              // come next, of the group whose keys were asked for
  u32 holes, groups_ahead;  // a bit a group asked for, the oldest first: it has no page

  __device__ __forceinline__ explicit Feed(char* shared)
      : ring(shared + warp_index() * BYTES),
        kv_head(0),
        seq(0),
        j(0),
        end(0),
        seen{0, -1},
        pages(-1),
        entry(0),
        into(0),
        from(0),
        values(false),
        holes(0),
        groups_ahead(0) {}

  __device__ __forceinline__ int page_of(const AttentionArgs& a, int i) const {
    const bool wanted = i * kPage < end && (i + 1) * kPage > seen.first;
    return wanted ? page_at(a, seq, i) : -1;
  }

  // Keys [begin, end) of a sequence, begin being the start of a chunk.
  __device__ __forceinline__ void open(const AttentionArgs& a, int head, int of, Span visible,
                                       int begin, int stop) {
    kv_head = head;
    seq = of;
    seen = visible;
    j = begin + kKeys * warp_index();
    end = stop;
    entry = begin / kPage;
    pages = page_of(a, entry + threadIdx.x % 32);
  }

  // Asks for the next keys or values.
  template <class Next>
  __device__ __forceinline__ void ask(const AttentionArgs& a, Next next) {
    if (!values) {
      while (j >= end) {
        if (!next(*this)) {
          copies_end();  // an empty group of copies: there are always HALVES
          return;
        }
      }
      if (j / kPage >= entry + 32) {
        entry = j / kPage;
        pages = page_of(a, entry + threadIdx.x % 32);
      }
    }
    const int page = __shfl_sync(kAllLanes, pages, j / kPage - entry);
    char* const to = ring + into * HALF;
    if (values) {
      Values::copy(to, a.v.row(kv_head, 0, 0), a.v.nb[2], page, j, seen);
      j += kChunk;
    } else {
      Keys::copy(to, a.k.row(kv_head, 0, 0), a.k.nb[2], page, j, seen);
      holes |= (u32)(page < 0) << groups_ahead++;
    }
    copies_end();
    values = !values;
    into = into + 1 < HALVES ? into + 1 : 0;
  }

  // Fills the ring.
  template <class Next>
  __device__ __forceinline__ void start(const AttentionArgs& a, Next next) {
#pragma unroll
    for (int i = 0; i < HALVES; ++i) ask(a, next);
  }

  // The oldest keys or values, once they are there.
  __device__ __forceinline__ const char* take() const {
    copies_wait<HALVES - 1>();
    __syncwarp();
    return ring + from * HALF;
  }

  // They have been read: others come into their place.
  template <class Next>
  __device__ __forceinline__ void release(const AttentionArgs& a, Next next) {
    __syncwarp();
    from = from + 1 < HALVES ? from + 1 : 0;
    ask(a, next);
  }

  // Whether the oldest group, whose keys come next, has no page. To be asked once for each.
  __device__ __forceinline__ bool take_hole() {
    const bool hole = holes & 1;
    holes >>= 1;
    --groups_ahead;
    return hole;
  }
};
