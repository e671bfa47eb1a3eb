// Meeting the host, or another device, in the middle of a graph: flags in memory that both reach,
// and the copies that go with them. See `Flag` of engine/backends/base.py.
#include "cuda/dependent.cuh"
#include "cuda/peer.cuh"

constexpr int kPieces = 8;  // PIECES of link.py

struct Piece {
  uint4* to;
  const uint4* from;
  i64 n;  // of 16 bytes
};

// A null flag: copy only. ticket counts the blocks that are done; it is 0 between launches.
struct LinkArgs {
  u32* flag;
  u32* given_up;
  u32* ticket;
  i64 timeout_ns;
  u32 code;
  i32 n_pieces;
  Piece pieces[kPieces];
};

__device__ __forceinline__ void copy_pieces(const LinkArgs& a) {
  for (int p = 0; p < a.n_pieces; ++p) {
    const Piece& piece = a.pieces[p];
    for (i64 i = global_thread(); i < piece.n; i += global_threads()) {
      piece.to[i] = load_volatile(piece.from + i);
    }
  }
}

// Whether this is the last block to get here, for one thread of each block.
__device__ __forceinline__ bool is_last(u32* ticket) {
  return gridDim.x == 1 || atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
}

// Copy to where the other side is, then set the flag. What the kernels before this one wrote, maybe
// right into the other device's memory, comes before the flag too: it is done and can be seen here
// after wait_for_previous, and the release is one for the whole system.
__global__ void __launch_bounds__(1024) link_signal(const __grid_constant__ LinkArgs a) {
  launch_dependents();
  wait_for_previous();
  copy_pieces(a);
  __syncthreads();
  if (a.flag == nullptr || threadIdx.x != 0) return;
  // One block's copies come before its flag; those of several before their tickets first.
  if (gridDim.x > 1) __threadfence_system();
  if (is_last(a.ticket)) store_release(a.flag, 1);
}

// Wait for the flag, copy, take the flag back. The wait begins while the kernel
// before this one still runs, and the kernel after it may fetch its weights meanwhile.
__global__ void __launch_bounds__(1024) link_wait(const __grid_constant__ LinkArgs a) {
  launch_dependents();
  if (a.flag != nullptr && threadIdx.x == 0) {
    const i64 begin = clock_ns();
    for (int turn = 1; load_acquire(a.flag) == 0; ++turn) {
      if (turn % 8 != 0) continue;  // the bus is slow: look at the flag most of the time
      if (load_acquire(a.given_up) != 0) break;
      if (clock_ns() - begin > a.timeout_ns) {
        store_release(a.given_up, a.code);
        break;
      }
    }
  }
  __syncthreads();
  wait_for_previous();
  copy_pieces(a);  // what was there before, after a wait that was given up
  __syncthreads();
  if (a.flag != nullptr && threadIdx.x == 0 && is_last(a.ticket)) store_release(a.flag, 0);
}
