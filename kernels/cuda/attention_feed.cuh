// How keys and values come to the decode kernel: each warp copies its own, 16 keys at a time, into
// shared memory, some copies ahead of what it works on. What is on its way needs no registers and
// no room in the first-level cache.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/attention_mma.cuh"

constexpr int kWarps = 8;
constexpr int kKeys = 16;  // of a warp at a time: a group, which lies within a page
static_assert(kWarps * kKeys == kChunk, "a chunk is one pass of the block");
constexpr int kSmall = 9 << 10;  // bytes of two groups up to which a warp has two on their way
static_assert(kPage % kKeys == 0 && kChunk % kPage == 0, "a group has one page");

__device__ __forceinline__ int warp_index() { return threadIdx.x / 32; }

// The keys of a group, or its values, in shared memory. Rows of 16-bit floats lie such that lanes
// of the products' layouts read from different banks; quantized ones, and those of heads whose
// units are no power of two, as in the cache.
template <class C, int HD, bool VALUES>
struct GroupRows {
  static constexpr bool kPlain = CacheRow<C>::kPlain;
  static constexpr int ROW = kPlain ? 2 * HD : HD / 32 * 34;
  static constexpr int BYTES = kKeys * ROW;
  static constexpr int UNIT = kPlain ? 16 : HD == 64 ? 4 : 8;  // bytes of a copy
  static constexpr int UNITS = ROW / UNIT;
  static_assert(ROW % UNIT == 0, "rows are whole units");
  static constexpr bool kMixed = kPlain && (UNITS & (UNITS - 1)) == 0;

  static __device__ __forceinline__ int place(int r, int unit) {
    if (!kMixed) return r * ROW + unit * UNIT;
    return r * ROW + UNIT * (unit ^ (VALUES ? r & 6 : (r & 1) << 2));
  }

  // Keys [j, j + 16). Zeros where nobody sees any, as memory there may hold NaN.
  static __device__ __forceinline__ void copy(char* to, const char* base, i64 stride, int page,
                                              int j, Span seen) {
    const int lane = threadIdx.x % 32;
    const char* const from = base + ((i64)max(page, 0) * kPage + j % kPage) * stride;
    const u32 below = j - seen.first, span = page < 0 ? 0 : seen.last - seen.first + 1;
    if constexpr (kMixed) {
      constexpr int STEP = 32 / UNITS;  // rows that the warp copies at a time
      const int r0 = lane / UNITS, unit = lane % UNITS;
      const char* row = from + r0 * stride + UNIT * unit;
#pragma unroll
      for (int r = 0; r < kKeys; r += STEP, row += STEP * stride) {
        copy16_or_zeros(shared_address(to + place(r0 + r, unit)), row, below + r0 + r < span);
      }
    } else {
#pragma unroll
      for (int i = 0; i < (kKeys * UNITS + 31) / 32; ++i) {
        const int n = 32 * i + lane, r = n / UNITS, unit = n % UNITS;
        if (kKeys * UNITS % 32 != 0 && r >= kKeys) continue;
        const u32 at = shared_address(to + place(r, unit));
        const char* const row = from + r * stride + UNIT * unit;
        if constexpr (kPlain) {
          copy16_or_zeros(at, row, below + r < span);
        } else {
          copy_or_zeros<UNIT>(at, row, below + r < span);
        }
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

template <class K, class V, int HD>
constexpr int kGroupBytes = larger(GroupRows<K, HD, false>::BYTES, GroupRows<V, HD, true>::BYTES);
// Groups that a warp has on their way, as far as it is not told.
template <class K, class V, int HD>
constexpr int kDepth = 4 * kGroupBytes<K, V, HD> <= kSmall ? 2 : 1;

// A warp's copies: a ring of DEPTH places, each for the keys and the values of a group. A stretch
// of keys of one sequence follows another; next(feed) opens it, or says that there is none.
template <class K, class V, int HD, int DEPTH = kDepth<K, V, HD>>
struct Feed {
  typedef GroupRows<K, HD, false> Keys;
  typedef GroupRows<V, HD, true> Values;
  static constexpr int HALF = kGroupBytes<K, V, HD>;
  static constexpr int BYTES = 2 * DEPTH * HALF;  // of a warp

  char* ring;
  int kv_head, seq;
  int j, end;       // the group to ask for next, and where the stretch ends
  Span seen;        // of the sequence
  int pages, page;  // lane i has the page of entry + i of the sequence's table; that of j
  int entry;
  int into, from;           // places of the ring: to fill next, and to read next
  u32 holes, groups_ahead;  // a bit a group asked for, the oldest first: it has no page

  __device__ __forceinline__ explicit Feed(char* ring)
      : ring(ring),
        kv_head(0),
        seq(0),
        j(0),
        end(0),
        seen{0, -1},
        pages(-1),
        page(-1),
        entry(0),
        into(0),
        from(0),
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

  // Asks for the next keys; ask_values, which comes after it, for the values of the same group.
  // Where there are none the group of copies is empty, for there are always as many.
  template <class Next>
  __device__ __forceinline__ void ask_keys(const AttentionArgs& a, Next next) {
    while (j >= end && next(*this)) {
    }
    if (j < end) {
      if (j / kPage >= entry + 32) {
        entry = j / kPage;
        pages = page_of(a, entry + threadIdx.x % 32);
      }
      page = __shfl_sync(kAllLanes, pages, j / kPage - entry);
      Keys::copy(ring + 2 * HALF * into, a.k.row(kv_head, 0, 0), a.k.nb[2], page, j, seen);
      holes |= (u32)(page < 0) << groups_ahead++;
    }
    copies_end();
  }
  __device__ __forceinline__ void ask_values(const AttentionArgs& a) {
    if (j < end) {
      Values::copy(ring + 2 * HALF * into + HALF, a.v.row(kv_head, 0, 0), a.v.nb[2], page, j, seen);
      j += kChunk;
      into = into + 1 < DEPTH ? into + 1 : 0;
    }
    copies_end();
  }

  // Fills the ring, once a stretch is open. The keys before `old` are those of earlier runs: groups
  // of them alone are asked for before wait(), which waits for the kernels ahead.
  template <class Next, class Wait>
  __device__ __forceinline__ void start(const AttentionArgs& a, Next next, int old, Wait wait) {
    int n = 0;
#pragma unroll 1
    for (bool waited = false;; waited = true) {
#pragma unroll 1
      for (; n < DEPTH && (waited || (j < end && j + kKeys <= old)); ++n) {
        ask_keys(a, next);
        ask_values(a);
      }
      if (waited) break;
      wait();
    }
  }

  // The oldest keys, and their values, once they are there.
  __device__ __forceinline__ const char* take_keys() const {
    copies_wait<2 * DEPTH - 1>();
    __syncwarp();
    return ring + 2 * HALF * from;
  }
  __device__ __forceinline__ const char* take_values() const { return take_keys() + HALF; }

  // They have been read: others come into their place.
  template <class Next>
  __device__ __forceinline__ void release_keys(const AttentionArgs& a, Next next) {
    __syncwarp();
    ask_keys(a, next);
  }
  __device__ __forceinline__ void release_values(const AttentionArgs& a) {
    __syncwarp();
    from = from + 1 < DEPTH ? from + 1 : 0;
    ask_values(a);
  }

  // Whether the oldest group, whose keys come next, has no page. To be asked once for each.
  __device__ __forceinline__ bool take_hole() {
    const bool hole = holes & 1;
    holes >>= 1;
    --groups_ahead;
    return hole;
  }
};
