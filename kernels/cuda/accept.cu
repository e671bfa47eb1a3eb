// accept: the end of a round that checks guesses, which needs no host. Of every sequence the tokens
// chosen are taken up to the first that was not guessed, they join its text, the next tokens are
// guessed, and the rows that will check them become the next round's inputs. What was taken goes
// into a ring in the host's memory. A block a sequence.
#include "cuda/dependent.cuh"

constexpr int kGroups = 8;                  // GROUPS of advance.py
constexpr int kPage = 64;                   // PAGE of plan_key.py
constexpr int kThreads = 1024;              // BLOCK of accept.py
constexpr int kMost = 64;                   // MOST_GUESSES
constexpr int kLongest = 4, kShortest = 2;  // n-grams, as in speculation_lookup.py
constexpr int kAtOnce = 8;                  // places that a thread looks at before a barrier
constexpr int kWrong = -2;                  // in the ring: a guess that did not come true

// As RoundMemory.LINE names them.
enum { kRow, kRows, kLength, kEnd, kLeast, kText, kMade, kWanted, kLine };

struct AcceptArgs {
  const i32* token;  // sampled
  i32 *tokens, *pos, *seq;
  u64* rng;             // seed, step
  i32* history;         // h ids a row, newest last
  i32* lines;           // kLine numbers of each sequence
  i32* texts;           // capacity tokens each
  const i32* prepared;  // the same, of every position what is guessed; null: texts are looked up
  u32* steps;           // of each sequence, rounds since the start
  u64* ring;            // size entries, a power of two, of n rows each, in the host's memory
  i32* rows[kGroups];
  const i32* table[kGroups];  // [n_seqs, n_entries]
  i32 n_entries[kGroups];
  i32 n_groups, n_seqs, h, size, n, begins;
  i32 drafted;  // what is not prepared is guessed by another model, before the next round
  i64 capacity;
};

// The latest place of a text of `length` tokens that comes after the longest end of `last` that
// stands before: those of kLongest tokens count first, then shorter ones. 0 for none. All threads
// get it.
__device__ int after_the_same(const i32* text, int length, const i32* last, u32* best) {
  constexpr int kPlace = 28;  // bits of a place, below the number of tokens that are the same
  if (threadIdx.x == 0) *best = 0;
  __syncthreads();
  const i32 newest = last[kLongest - 1];
  for (int top = length - 1; top >= kShortest; top -= kThreads * kAtOnce) {
    i32 before[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int place = top - i * kThreads - (int)threadIdx.x;
      before[i] = place >= kShortest ? __ldcg(text + place - 1) : -1;
    }
    bool whole = false;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (before[i] < 0 || before[i] != newest) continue;
      const int place = top - i * kThreads - (int)threadIdx.x;
      int same = 1;
      while (same < min(kLongest, place) &&
             __ldcg(text + place - 1 - same) == last[kLongest - 1 - same])
        same++;
      if (same >= kShortest) atomicMax(best, (u32)same << kPlace | (u32)place);
      whole = whole || same == kLongest;
    }
    if (__syncthreads_or(whole)) break;  // those further on are earlier
  }
  __syncthreads();
  return *best & ((1u << kPlace) - 1);
}

__global__ void __launch_bounds__(kThreads) accept(const __grid_constant__ AcceptArgs a) {
  __shared__ i32 last[kLongest + kMost];  // the end of the text, and the guesses behind it
  __shared__ i32 made, guessed;
  __shared__ u32 best;
  i32* const guesses = last + kLongest;
  launch_dependents();
  wait_for_previous();
  const int line = blockIdx.x, thread = threadIdx.x;
  i32* const at = a.lines + line * kLine;
  const int row = __ldcg(at + kRow), n_rows = __ldcg(at + kRows);
  int length = __ldcg(at + kLength);
  const int end = __ldcg(at + kEnd), number = __ldcg(at + kText);
  i32* const text = a.texts + number * a.capacity;
  const bool is_row = thread < n_rows;

  if (!a.begins) {
    const u32 step = __ldcg(a.steps + line) + 1;
    u64* const ring = a.ring + (i64)(step & (a.size - 1)) * a.n;
    const auto tell = [&](int at_row, i32 token) {
      // One store, so that the host never sees a round without its tokens.
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(ring + at_row),
                   "l"((u64)step << 32 | (u32)token)
                   : "memory");
    };
    const bool live = is_row && __ldcg(a.pos + row + thread) >= 0;
    const i32 token = live ? __ldcg(a.token + row + thread) : -1;
    if (thread == 0) made = live ? n_rows : 0;
    __syncthreads();
    if (is_row && thread > 0 && made > 0) {
      const bool right =
          live && __ldcg(a.tokens + row + thread) == __ldcg(a.token + row + thread - 1);
      if (!right) atomicMin(&made, thread);
    }
    __syncthreads();
    if (is_row) {
      const bool taken = thread < made;
      tell(row + thread, taken ? token : live ? kWrong : -1);
      if (taken) text[length + thread] = token;
    }
    if (line + 1 == gridDim.x)  // rows of no sequence
      for (int i = row + n_rows + thread; i < a.n; i += kThreads) tell(i, -1);
    if (thread == 0) a.steps[line] = step;
  } else if (thread == 0) {
    made = 0;
  }
  if (n_rows == 0) return;
  const u64 draws = __ldcg(a.rng + 2 * row + 1);
  __syncthreads();
  length += made;

  const bool over = length > end;  // a row at position end - 1 is the last
  const int room = over ? 0 : min(n_rows - 1, end - length);
  if (thread == 0) guessed = room;
  if (thread < kLongest) {
    const int place = length - kLongest + thread;
    last[thread] = place < 0 ? -1 : __ldcg(text + place);
  }
  __syncthreads();
  if (a.prepared) {
    if (thread < room) {
      const i32 guess = __ldcg(a.prepared + number * a.capacity + length + thread);
      guesses[thread] = guess;
      if (guess < 0) atomicMin(&guessed, thread);
    }
  } else if (!a.drafted) {
    for (int i = 0; i < room; i++) {
      const int place = after_the_same(text, length, last + i, &best);
      if (thread == 0) {
        if (place)
          guesses[i] = __ldcg(text + place);
        else
          guessed = i;
      }
      __syncthreads();
      if (!place) break;
    }
  }
  __syncthreads();
  const int n_guesses = guessed < __ldcg(at + kLeast) ? 0 : guessed,
            n_live = over ? 0 : 1 + n_guesses;
  const int n_known = a.drafted && !a.prepared ? min(n_live, 1) : n_live;  // rows with a token

  if (is_row) {
    const int i = row + thread, pos = thread < n_live ? length - 1 + thread : -1;
    a.pos[i] = pos;
    a.tokens[i] = thread < n_known ? last[kLongest - 1 + thread] : -1;
    a.seq[i] = pos < 0 ? -1 : line;
    a.rng[2 * i + 1] = draws + made + thread;
    for (int g = 0; g < a.n_groups; g++) {
      const int entry = pos / kPage;
      const bool there = pos >= 0 && line < a.n_seqs && entry < a.n_entries[g];
      const int page = there ? __ldcg(a.table[g] + (i64)line * a.n_entries[g] + entry) : -1;
      a.rows[g][i] = page < 0 ? -1 : page * kPage + pos % kPage;
    }
  }
  for (int i = thread; i < n_known * a.h; i += kThreads) {
    const int k = i / a.h, place = length + k - a.h + i % a.h;
    a.history[(i64)row * a.h + i] = place < 0        ? -1
                                    : place < length ? __ldcg(text + place)
                                                     : guesses[place - length];
  }
  if (thread == 0) {
    at[kLength] = length;
    at[kMade] = 0;
    at[kWanted] = max(0, n_live - 1);
  }
}
