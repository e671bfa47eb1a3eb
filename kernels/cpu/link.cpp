// Meeting another device in the middle of a program: flags in memory that both reach.
//
// A signal sets a flag to 1 once the results of the ops before it are in memory; the wait on the
// other side takes it back to 0, so a flag is ready for the next run without counting runs. One
// word for all flags says that some wait was given up: whoever waits then leaves too, and nobody
// hangs.
#include <chrono>
#include <thread>

#include "cpu/kernel.h"
#include "cpu/relax.h"

namespace {

using Clock = std::chrono::steady_clock;
using Flag = std::atomic<uint32_t>;

constexpr int kTurnsPerLook = 64;                         // between looks at the clock
constexpr auto kPatience = std::chrono::milliseconds(2);  // before other threads are let in

struct Signal {
  Flag* flag;
};

struct Wait {
  Flag* flag;
  Flag* given_up;              // code of the wait that was given up, on either side
  std::atomic<int32_t>* stop;  // the executor's: ends this program
  int64_t timeout_ns;
  int32_t code;  // of this wait, not 0
};

bool arrives(const Wait& w) {
  const auto begin = Clock::now();
  for (;;) {
    for (int i = 0; i < kTurnsPerLook; ++i) {
      if (w.flag->load(std::memory_order_acquire) != 0) return true;
      gf_relax();
    }
    if (w.given_up->load(std::memory_order_relaxed) != 0) return false;
    const auto waited = Clock::now() - begin;
    if (waited > std::chrono::nanoseconds(w.timeout_ns)) {
      w.given_up->store(static_cast<uint32_t>(w.code), std::memory_order_release);
      return false;
    }
    if (waited > kPatience) std::this_thread::yield();
  }
}

}  // namespace

// Both are for one thread; the executor's barriers keep the others in step.
GF_EXPORT void gf_link_signal(const gf_op* op, gf_thread*) {
  gf_params<Signal>(op).flag->store(1, std::memory_order_release);
}

GF_EXPORT void gf_link_wait(const gf_op* op, gf_thread*) {
  const auto w = gf_params<Wait>(op);
  if (arrives(w)) {
    w.flag->store(0, std::memory_order_relaxed);
  } else {
    w.stop->store(w.code, std::memory_order_relaxed);
  }
}
