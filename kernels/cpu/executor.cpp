// The thread pool and the plan executor: one call runs a segment's flat array of op records.
//
// Workers spin briefly between ops, because the next op is usually microseconds away, and park on a
// condition variable when it is not. The caller is thread 0. A program linked with another device
// (link.cpp) waits for it in the middle, so its workers spin longer, and it can be ended early.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <time.h>
#endif

#include "cpu/abi.h"
#include "cpu/relax.h"

struct gf_pool;

namespace {

// The clock of Python's perf_counter_ns, to whose readings these are compared.
int64_t now_ns() {
#if defined(__APPLE__)
  return static_cast<int64_t>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW));
#else
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
#endif
}

// Waits until `value` differs from `seen`: spins, then parks.
class Gate {
 public:
  int value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      changed_.notify_all();
    }
  }

  void wait_past(int seen, int spins) {
    for (int i = 0; i < spins; ++i) {
      if (value() != seen) return;
      gf_relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    parked_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
    parked_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  alignas(64) std::atomic<int> value_{0};
  alignas(64) std::atomic<int> parked_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

class Barrier {
 public:
  explicit Barrier(int n) : n_(n) {}

  void wait(int spins) {
    if (n_ == 1) return;
    const int seen = gate_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
      arrived_.store(0, std::memory_order_relaxed);
      gate_.advance();
    } else {
      gate_.wait_past(seen, spins);
    }
  }

 private:
  const int n_;
  alignas(64) std::atomic<int> arrived_{0};
  Gate gate_;
};

struct Job {
  const gf_op* ops = nullptr;
  int64_t n_ops = 0;
  unsigned char* scratch = nullptr;
  int64_t scratch_bytes = 0;
  int64_t* ends_ns = nullptr;  // n_ops + 1 clock readings, or null when nobody profiles
  int spins = 0;               // turns of the wait loop before a thread parks between ops
  const std::atomic<int32_t>* stop = nullptr;  // not 0 once an op of thread 0 has ended the program
  bool heeds = false;                          // whether gf_interrupt ends it
  const std::atomic<int32_t>* cancel = nullptr;  // not 0 once gf_cancel has been called with it
};

// What gf_pool_run returns.
enum Outcome : int32_t { kRan = 0, kInterrupted = 1, kCancelled = 2 };

// The calling thread's word, see gf_heed.
thread_local const std::atomic<int32_t>* heeded = nullptr;

std::mutex interrupting;        // held to begin a program and to interrupt it
std::vector<gf_pool*> running;  // pools whose programs heed it

#if !defined(_WIN32)
// A process made by fork has none of the threads that may hold the lock, nor their programs.
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { interrupting.lock(); }, [] { interrupting.unlock(); },
                   [] {
                     interrupting.unlock();
                     running.clear();
                   });
#endif

struct alignas(64) Counter {
  std::atomic<int64_t> value{0};
};

// What an interrupted op's counter of work is set to: every thread that asks finds nothing left.
constexpr int64_t kNothingLeft = int64_t{1} << 62;

struct alignas(64) Meeting {
  gf_barrier at = {0, 0};
};

}  // namespace

struct gf_pool {
  gf_pool(int n, int spins, bool pin) : n_threads(n), spins(spins), barrier(n) {
    try {
      for (int i = 1; i < n; ++i) workers.emplace_back([this, i, pin] { work(i, pin); });
    } catch (...) {  // the system gives no more threads: those it gave must end first
      end_workers();
      throw;
    }
  }

  ~gf_pool() { end_workers(); }

  void end_workers() {
    stop.store(true);
    start.advance();
    for (auto& w : workers) w.join();
  }

  void work(int ith, bool pin) {
    if (pin) pin_to_allowed_cpu(ith);
    int turns = spins;  // after a linked program another one is soon to come
    for (int seen = 0;;) {
      start.wait_past(seen, turns);
      ++seen;
      if (stop.load()) return;
      turns = execute(ith);
    }
  }

  // Pins to the ith CPU this process may use, and only if every thread can have its own.
  void pin_to_allowed_cpu(int ith) const {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (CPU_COUNT(&allowed) < n_threads) return;
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || k++ != ith) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
#else
    (void)ith;
#endif
  }

  int threads_for(const gf_op& op) const {
    return op.max_threads > 0 && op.max_threads < n_threads ? op.max_threads : n_threads;
  }

  // Returns the job's spins.
  int execute(int ith) {
    const Job j = job;
    if (ith == 0 && j.ends_ns) j.ends_ns[0] = now_ns();
    for (int64_t i = 0; i < j.n_ops; ++i) {
      const gf_op& op = j.ops[i];
      const int nth = threads_for(op);
      auto* const next = reinterpret_cast<int64_t*>(&counters[i % 3].value);
      gf_thread th{ith, nth, j.scratch, j.scratch_bytes, next, &meeting.at};
      if (op.init) {
        if (ith < nth && !stopped(j)) op.init(&op, &th);
        if (nth > 1) barrier.wait(j.spins);
      }
      if (ith < nth && !stopped(j)) op.fn(&op, &th);
      // Three counters in turn: the one reset here was last used two barriers ago.
      if (ith == 0) counters[(i + 1) % 3].value = 0;
      // Two single-threaded ops in a row need no meeting: thread 0 runs both.
      const bool alone = nth == 1 && i + 1 < j.n_ops && threads_for(j.ops[i + 1]) == 1;
      // One thread looks; after the barrier the others read the same, or of a later op, at whose
      // barrier all then leave. Whoever was told that nothing is left also sees why.
      if (ith == 0 && j.heeds) {
        std::atomic_thread_fence(std::memory_order_acquire);
        if (interrupted.load(std::memory_order_relaxed)) left.store(i);
      }
      if (!alone) barrier.wait(j.spins);
      if (ith == 0 && j.ends_ns) j.ends_ns[i + 1] = now_ns();
      // Only ops that run alone stop a program, so after a barrier all threads see the same. They
      // leave together: a new program may not start while one of them has yet to look.
      if ((!alone || n_threads == 1) && i + 1 < j.n_ops && (stopped(j) || left.load() == i)) {
        barrier.wait(j.spins);
        break;
      }
    }
    return j.spins;
  }

  // `interrupting` is held.
  void leave_work() {
    interrupted.store(1);
    for (Counter& c : counters) c.value.store(kNothingLeft, std::memory_order_release);
  }

  static bool stopped(const Job& j) {
    return j.stop && j.stop->load(std::memory_order_relaxed) != 0;
  }

  // `interrupting` is held.
  bool heeds_word(const std::atomic<int32_t>* word) const { return job.cancel == word; }

  Outcome run(const Job& program) {
    std::lock_guard<std::mutex> turn(callers);
    {
      std::lock_guard<std::mutex> lock(interrupting);
      if (program.cancel && program.cancel->load()) return kCancelled;  // before it began
      job = program;
      counters[0].value = 0;
      left.store(-1);
      if (job.heeds) {
        interrupted.store(0);
        running.push_back(this);
      }
    }
    start.advance();
    execute(0);
    if (program.heeds) {
      std::lock_guard<std::mutex> lock(interrupting);
      running.erase(std::find(running.begin(), running.end(), this));
    }
    if (left.load() < 0) return kRan;
    return program.cancel && program.cancel->load() ? kCancelled : kInterrupted;
  }

  const int n_threads;
  const int spins;
  Job job;
  Counter counters[3];
  std::atomic<int32_t> interrupted{0};  // since the program began
  std::atomic<int64_t> left{-1};        // the op after which an interrupted program was left
  Meeting meeting;
  Barrier barrier;
  Gate start;
  std::atomic<bool> stop{false};
  std::mutex callers;  // sessions on several threads share a pool; they take turns
  std::vector<std::thread> workers;
};

// Makes a pool of n threads, the caller's included. Returns null when threads cannot be had.
// spins: turns of the wait loop before a thread parks.
GF_EXPORT gf_pool* gf_pool_create(int32_t n_threads, int32_t spins, int32_t pin) {
  if (n_threads < 1) return nullptr;
  try {
    return new gf_pool(n_threads, spins, pin != 0);
  } catch (const std::system_error&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

GF_EXPORT void gf_pool_destroy(gf_pool* pool) { delete pool; }

// Runs the ops in order. Every op sees all results of the ops before it.
// ends_ns: null, or room for n_ops + 1 readings of the monotonic clock in nanoseconds: the start,
// then the end of each op. Callers on other threads wait their turn. Returns 0, or where it was
// ended in the middle, and the results are of no use, 1 for gf_interrupt and 2 for gf_cancel.
GF_EXPORT int32_t gf_pool_run(gf_pool* pool, const gf_op* ops, int64_t n_ops,
                              unsigned char* scratch, int64_t scratch_bytes, int64_t* ends_ns) {
  if (n_ops <= 0) return 0;
  return pool->run(
      {ops, n_ops, scratch, scratch_bytes, ends_ns, pool->spins, nullptr, true, heeded});
}

// Ends what gf_pool_run runs at the moment, from any thread, in the middle of an op too: of those
// that share out their work by gf_steal, which are all that take long, nothing is left to take.
GF_EXPORT void gf_interrupt() {
  std::lock_guard<std::mutex> lock(interrupting);
  for (gf_pool* pool : running) pool->leave_work();
}

// From now on gf_pool_run of the calling thread is ended by gf_cancel with this word, and begins
// nothing while the word is not 0. Null: no longer. The word stays while a program runs.
GF_EXPORT void gf_heed(int32_t* word) { heeded = reinterpret_cast<std::atomic<int32_t>*>(word); }

// Sets the word and ends what runs by it, from any thread, as gf_interrupt does.
GF_EXPORT void gf_cancel(int32_t* word) {
  auto* const flag = reinterpret_cast<std::atomic<int32_t>*>(word);
  std::lock_guard<std::mutex> lock(interrupting);
  flag->store(1);
  for (gf_pool* pool : running) {
    if (pool->heeds_word(flag)) pool->leave_work();
  }
}

// The same for a program with waits for another device. spins: turns of the wait loop before a
// thread parks between ops. stop: set to 0 at first; an op that one thread runs sets it to end the
// program, and what it sets tells the caller why.
GF_EXPORT void gf_pool_run_linked(gf_pool* pool, const gf_op* ops, int64_t n_ops,
                                  unsigned char* scratch, int64_t scratch_bytes, int64_t* ends_ns,
                                  int32_t spins, int32_t* stop) {
  auto* const word = reinterpret_cast<std::atomic<int32_t>*>(stop);
  word->store(0);
  if (n_ops > 0) pool->run({ops, n_ops, scratch, scratch_bytes, ends_ns, spins, word});
}
