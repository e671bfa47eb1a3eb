// What becomes of a mapped file that another program cuts short, or whose disk fails: reading it
// raises SIGBUS, which ends the process. For ranges registered here the missing pages are replaced
// by zeros instead and the range is marked as lost, so that whoever reads goes on, and the caller
// asks afterwards and drops what came of it. Until that happens it costs nothing.
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
};

Range ranges[kRanges];
struct sigaction before;
uintptr_t page_mask;

void pass_on(int number, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(number, &before, nullptr);  // the access is repeated, and ends the process
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
    void* got = mmap(reinterpret_cast<void*>(from), end - from, PROT_READ,
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

}  // namespace

// Takes over SIGBUS. Returns 0, or -1 where the system refuses.
GF_EXPORT int32_t gf_guard_install() {
  page_mask = ~static_cast<uintptr_t>(sysconf(_SC_PAGESIZE) - 1);
  struct sigaction ours;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  return sigaction(SIGBUS, &ours, &before);
}

// Guards a mapping that begins at a page. Returns its place, or -1 when there is none left.
GF_EXPORT int32_t gf_guard_add(void* begin, int64_t n_bytes) {
  const uintptr_t size = (static_cast<uintptr_t>(n_bytes) + ~page_mask) & page_mask;
  for (int32_t i = 0; i < kRanges; ++i) {
    uintptr_t none = 0;
    // 1 is no address: the place is taken, and no range yet.
    if (!ranges[i].begin.compare_exchange_strong(none, 1)) continue;
    ranges[i].lost.store(0);
    ranges[i].end.store(reinterpret_cast<uintptr_t>(begin) + size);
    ranges[i].begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
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
GF_EXPORT int32_t gf_guard_add(void*, int64_t) { return -1; }
GF_EXPORT void gf_guard_remove(int32_t) {}
GF_EXPORT int32_t gf_guard_lost(int32_t) { return 0; }

#endif
