// What becomes of a mapped file that another program cuts short, or whose disk fails: reading it
// raises SIGBUS, which ends the process. For ranges registered here the missing pages are replaced
// by zeros instead and the range is marked as lost, so that whoever reads goes on, and the caller
// asks afterwards and drops what came of it. Until that happens it costs nothing.
//
// A process has one handler of a signal, and other libraries take it too, often after us: Ray's
// when a cluster is joined, Python's faulthandler when it is enabled. So whoever is about to read
// says so, gf_guard_install: a handler that came in between is called for what is not ours.
//
// A library of its own, without dependencies: files are read before any kernel is loaded.
#include <stdint.h>

#if defined(_WIN32)
#define GF_EXPORT extern "C" __declspec(dllexport)
#else
#define GF_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// How many ranges were lost so far; read by the caller after every run.
extern "C" {
#if defined(_WIN32)
__declspec(dllexport) volatile int32_t gf_guard_n_lost = 0;
#else
__attribute__((visibility("default"))) volatile int32_t gf_guard_n_lost = 0;
#endif
}

#if defined(__unix__) || defined(__APPLE__)

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr int kRanges = 1024;  // mapped at a time; more are not guarded

// begin is written last when a range is added and first when it is taken away: 0 is a free place.
struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<int32_t> lost{0};
  std::atomic<int32_t> protection{PROT_READ};
};

Range ranges[kRanges];
uintptr_t page_mask;

// Whose handlers we took the place of, the last one in use; a few, as one may be read meanwhile.
constexpr unsigned kOthers = 8;
struct sigaction others[kOthers];
std::atomic<unsigned> n_others{0};
std::atomic_flag taking = ATOMIC_FLAG_INIT;
std::atomic<uintptr_t> passing{0};  // the thread that is in another's handler,
volatile unsigned n_passed = 0;     // and how many of them called us in turn

void end_by(int number) {
  struct sigaction plain;
  memset(&plain, 0, sizeof plain);
  plain.sa_handler = SIG_DFL;
  sigaction(number, &plain, nullptr);  // the access is repeated, and ends the process
}

// A handler that was put in after us calls the one before it, which we are: then ours is the turn
// of the one before that.
void pass_on(int number, siginfo_t* info, void* context) {
  const uintptr_t self = reinterpret_cast<uintptr_t>(reinterpret_cast<void*>(pthread_self()));
  uintptr_t in_it = 0;
  const bool is_first = passing.compare_exchange_strong(in_it, self);
  const unsigned past = !is_first && in_it == self ? ++n_passed : 0;
  const unsigned n = n_others.load(std::memory_order_acquire);
  const struct sigaction& other = others[(n - 1 - past) % kOthers];
  if (past >= n || past >= kOthers || other.sa_handler == SIG_DFL || other.sa_handler == SIG_IGN) {
    end_by(number);
  } else if (other.sa_flags & SA_SIGINFO) {
    other.sa_sigaction(number, info, context);
  } else {
    other.sa_handler(number);
  }
  if (is_first) {
    n_passed = 0;
    passing.store(0);
  }
}

// Only calls that the kernel answers: nothing here may allocate or lock.
void on_bus_error(int number, siginfo_t* info, void* context) {
  const int keep = errno;
  const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& r : ranges) {
    const uintptr_t begin = r.begin.load(std::memory_order_acquire);
    const uintptr_t end = r.end.load(std::memory_order_relaxed);
    if (!begin || at < begin || at >= end) continue;
    // All that follows: a file is cut at its end, and one signal is enough.
    const uintptr_t from = at & page_mask;
    void* got = mmap(reinterpret_cast<void*>(from), end - from, r.protection.load(),
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) break;
    r.lost.store(1, std::memory_order_relaxed);
    gf_guard_n_lost = gf_guard_n_lost + 1;
    errno = keep;
    return;
  }
  errno = keep;
  pass_on(number, info, context);
}

bool is_ours(const struct sigaction& a) {
  return (a.sa_flags & SA_SIGINFO) && a.sa_sigaction == on_bus_error;
}

}  // namespace

// Sees to it that SIGBUS is ours, and not held back in the calling thread, where it would end the
// process unseen. Returns 1 where another handler was found, else 0; -1 where the system refuses.
GF_EXPORT int32_t gf_guard_install() {
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);  // those that it starts get its mask
  struct sigaction now, ours;
  if (sigaction(SIGBUS, nullptr, &now)) return -1;
  if (is_ours(now)) return 0;
  while (taking.test_and_set()) {
  }
  page_mask = ~static_cast<uintptr_t>(sysconf(_SC_PAGESIZE) - 1);
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  int32_t got = sigaction(SIGBUS, nullptr, &now) ? -1 : 0;
  if (got == 0 && !is_ours(now)) {  // or another thread has taken it meanwhile
    const unsigned n = n_others.load();
    others[n % kOthers] = now;  // before ours is called, which reads it
    n_others.store(n + 1, std::memory_order_release);
    got = sigaction(SIGBUS, &ours, nullptr) ? -1 : 1;
  }
  taking.clear();
  return got;
}

// Guards a mapping that begins at a page, and holds the signal. is_written: zeros in its place can
// be written to. Returns its place, or -1 when there is none left.
GF_EXPORT int32_t gf_guard_add(void* begin, int64_t n_bytes, int32_t is_written) {
  if (gf_guard_install() < 0) return -1;
  const uintptr_t from = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t to = from + ((static_cast<uintptr_t>(n_bytes) + ~page_mask) & page_mask);
  // What was mapped here before is gone, even if that has not been told yet.
  for (Range& r : ranges) {
    if (r.begin.load() > 1 && r.begin.load() < to && r.end.load() > from) r.end.store(0);
  }
  for (int32_t i = 0; i < kRanges; ++i) {
    uintptr_t none = 0;
    // 1 is no address: the place is taken, and no range yet.
    if (!ranges[i].begin.compare_exchange_strong(none, 1)) continue;
    ranges[i].lost.store(0);
    ranges[i].protection.store(is_written ? PROT_READ | PROT_WRITE : PROT_READ);
    ranges[i].end.store(to);
    ranges[i].begin.store(from, std::memory_order_release);
    return i;
  }
  return -1;
}

// To be called before the mapping is given up.
GF_EXPORT void gf_guard_remove(int32_t place) {
  if (place < 0 || place >= kRanges) return;
  ranges[place].end.store(0);
  ranges[place].begin.store(0, std::memory_order_release);
}

// Whether some of a mapping was lost.
GF_EXPORT int32_t gf_guard_lost(int32_t place) {
  return place >= 0 && place < kRanges ? ranges[place].lost.load() : 0;
}

#else  // a file that is mapped cannot be cut short

GF_EXPORT int32_t gf_guard_install() { return 0; }
GF_EXPORT int32_t gf_guard_add(void*, int64_t, int32_t) { return -1; }
GF_EXPORT void gf_guard_remove(int32_t) {}
GF_EXPORT int32_t gf_guard_lost(int32_t) { return 0; }

#endif
