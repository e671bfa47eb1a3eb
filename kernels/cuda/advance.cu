// advance: the end of a decode step that needs no host. Each row's sampled token becomes its next
// input, its position, generator and history move on, and so do the rows of the caches that it will
// write; the tokens go into a ring in the host's memory. A block a row.
#include "cuda/dependent.cuh"

constexpr int kGroups = 8;  // GROUPS of advance.py
constexpr int kPage = 64;   // PAGE of plan_key.py

struct AdvanceArgs {
  const i32* token;  // sampled
  i32 *tokens, *pos;
  const i32* seq;  // row of the tables
  u64* rng;        // seed, step
  i32* history;    // h ids a row, newest last
  u32* steps;      // that were made since the start
  u64* ring;       // size entries, a power of two, of n rows each, in the host's memory
  i32* rows[kGroups];
  const i32* table[kGroups];  // [n_seqs, n_entries]
  i32 n_entries[kGroups];
  i32 n_groups, n_seqs, h, size;
};

__global__ void __launch_bounds__(256) advance(const __grid_constant__ AdvanceArgs a) {
  launch_dependents();
  wait_for_previous();
  const int row = blockIdx.x, thread = threadIdx.x;
  const int pos = __ldcg(a.pos + row) + 1, seq = __ldcg(a.seq + row);
  const i32 token = pos > 0 ? __ldcg(a.token + row) : -1;
  __syncthreads();  // everyone has read the position
  if (thread == 0) {
    const u32 step = __ldcg(a.steps + row) + 1;
    u64* const entry = a.ring + (i64)(step & (a.size - 1)) * gridDim.x + row;
    // One store, so that the host never sees a step without its token.
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(entry),
                 "l"((u64)step << 32 | (u32)token)
                 : "memory");
    a.steps[row] = step;
    if (pos > 0) {
      a.tokens[row] = token;
      a.pos[row] = pos;
      a.rng[2 * row + 1] = __ldcg(a.rng + 2 * row + 1) + 1;
    }
  }
  if (pos <= 0) return;  // padding
  if (thread >= 32 && thread - 32 < a.n_groups) {
    const int g = thread - 32, entry = pos / kPage;
    const bool there = (u32)seq < (u32)a.n_seqs && entry < a.n_entries[g];
    const int page = there ? __ldcg(a.table[g] + (i64)seq * a.n_entries[g] + entry) : -1;
    a.rows[g][row] = page < 0 ? -1 : page * kPage + pos % kPage;
  }
  i32* const history = a.history + (i64)row * a.h;
  for (int base = 0; base < a.h; base += blockDim.x) {
    const int i = base + thread;
    const i32 next = i + 1 < a.h ? __ldcg(history + i + 1) : token;
    __syncthreads();
    if (i < a.h) history[i] = next;
    __syncthreads();
  }
}
