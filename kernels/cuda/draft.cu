// The steps of a draft model between two rounds of accept.cu, which need no host. draft_first makes
// the inputs of the first one, of two rows a sequence: its last two tokens. draft_next comes after
// each: the token sampled is the next guess, a row of the round that will check it, and the input
// of the step that follows. A block a sequence.
#include "cuda/dependent.cuh"

constexpr int kGroups = 8;  // GROUPS of advance.py
constexpr int kPage = 64;   // PAGE of plan_key.py

// As RoundMemory.LINE names them.
enum { kRow, kRows, kLength, kEnd, kLeast, kText, kMade, kWanted, kLine };

struct DraftArgs {
  const i32* token;          // sampled by the step before; draft_next
  i32 *tokens, *pos, *seq;   // of the step that comes
  u64* rng;                  // seed, step
  i32* history;              // h ids a row, newest last
  i32* lines;                // kLine numbers of each sequence
  i32* texts;                // capacity tokens each
  const u64* round_rng;      // of the round's rows
  i32 *checked, *histories;  // tokens and histories of the round's rows; null where they are there
  i32* rows[kGroups];
  const i32* table[kGroups];  // [n_seqs, n_entries]
  i32 n_entries[kGroups];
  i32 n_groups, n_seqs, h, stride;  // stride: rows of a sequence in the step before
  i64 capacity;
};

// A row of a step: its token is at `pos` of the sequence. Negative: the row is not there.
__device__ void write_row(const DraftArgs& a, int row, int line, int pos, i32 token, u64 draw) {
  if (threadIdx.x == 0) {
    a.tokens[row] = pos < 0 ? -1 : token;
    a.pos[row] = pos;
    a.seq[row] = pos < 0 ? -1 : line;
    a.rng[2 * row + 1] = draw;
  }
  if (threadIdx.x < a.n_groups) {
    const int g = threadIdx.x, entry = pos / kPage;
    const bool there = pos >= 0 && line < a.n_seqs && entry < a.n_entries[g];
    const int page = there ? __ldcg(a.table[g] + (i64)line * a.n_entries[g] + entry) : -1;
    a.rows[g][row] = page < 0 ? -1 : page * kPage + pos % kPage;
  }
}

__global__ void __launch_bounds__(256) draft_first(const __grid_constant__ DraftArgs a) {
  launch_dependents();
  wait_for_previous();
  const int line = blockIdx.x;
  const i32* const at = a.lines + line * kLine;
  if (__ldcg(at + kRows) == 0) return;
  const int length = __ldcg(at + kLength);
  const bool live = __ldcg(at + kWanted) > 0;
  const i32* const text = a.texts + __ldcg(at + kText) * a.capacity;
  const u64 draw = __ldcg(a.round_rng + 2 * __ldcg(at + kRow) + 1);
  for (int i = 0; i < 2; i++) {
    const int pos = live ? max(-1, length - 2 + i) : -1;
    write_row(a, 2 * line + i, line, pos, pos < 0 ? -1 : __ldcg(text + pos), draw);
    for (int k = threadIdx.x; k < a.h; k += blockDim.x) {
      const int place = pos + 1 - a.h + k;
      a.history[(i64)(2 * line + i) * a.h + k] = place < 0 ? -1 : __ldcg(text + place);
    }
  }
}

__global__ void __launch_bounds__(256) draft_next(const __grid_constant__ DraftArgs a) {
  launch_dependents();
  wait_for_previous();
  const int line = blockIdx.x;
  i32* const at = a.lines + line * kLine;
  if (__ldcg(at + kRows) == 0) return;
  const int length = __ldcg(at + kLength), row = __ldcg(at + kRow);
  const int made = __ldcg(at + kMade), wanted = __ldcg(at + kWanted);
  i32* const text = a.texts + __ldcg(at + kText) * a.capacity;
  const u64 draw = __ldcg(a.round_rng + 2 * row + 1) + made + 1;
  const bool is_guess = made < wanted;
  const i32 guess = is_guess ? __ldcg(a.token + line * a.stride + a.stride - 1) : -1;
  __syncthreads();  // everyone has read what thread 0 writes
  write_row(a, line, line, made + 1 < wanted ? length + made : -1, guess, draw);
  if (!is_guess) return;
  for (int k = threadIdx.x; k < a.h; k += blockDim.x) {
    const int place = length + made + 1 - a.h + k;
    const i32 token = place < 0 ? -1 : k + 1 < a.h ? __ldcg(text + place) : guess;
    a.history[(i64)line * a.h + k] = token;
    if (a.histories) a.histories[(i64)(row + 1 + made) * a.h + k] = token;
  }
  if (threadIdx.x == 0) {
    text[length + made] = guess;
    if (a.checked) a.checked[row + 1 + made] = guess;
    at[kMade] = made + 1;
  }
}
