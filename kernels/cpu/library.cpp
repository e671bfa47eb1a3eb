// What a library says about itself and about the machine it runs on.
#include <string.h>

#include "cpu/abi.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// What CPUID says, and which registers the system saves. __builtin_cpu_supports would do, were it
// not that some compilers' runtimes leave its answers empty.
struct Features {
  unsigned ecx1 = 0, ebx7 = 0, ecx7 = 0, edx7 = 0, eax71 = 0;
  bool avx = false, wide = false;  // the system saves 256 and 512 bits of a register
  bool tiles = false;              // and tile registers

  Features() {
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) ecx1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      ebx7 = b, ecx7 = c, edx7 = d;
      if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) eax71 = a;
    }
    if (!bit(ecx1, 27)) return;  // the system manages no extended state
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    avx = bit(ecx1, 28) && (low & 0x06) == 0x06;
    wide = (low & 0xe6) == 0xe6;
    tiles = (low & 0x60000) == 0x60000;
  }
  static bool bit(unsigned word, int i) { return (word >> i & 1) != 0; }
};

// Tile registers are 8 KiB that a process has to ask for, once.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_M_ARM64) || (defined(__aarch64__) && defined(_WIN32))
#include <windows.h>
#endif

namespace {

#if defined(__aarch64__) || defined(_M_ARM64)
// What 64-bit ARM has beyond its baseline.
struct arm_features {
  bool dotprod = false, i8mm = false, fhm = false;  // fhm: products of float16 to float32

  arm_features() {
#if defined(__linux__)
    dotprod = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
    i8mm = getauxval(AT_HWCAP2) >> 13 & 1;    // HWCAP2_I8MM
    fhm = getauxval(AT_HWCAP) >> 23 & 1;      // HWCAP_ASIMDFHM
#elif defined(__APPLE__)
    dotprod = has("hw.optional.arm.FEAT_DotProd");
    i8mm = has("hw.optional.arm.FEAT_I8MM");
    fhm = has("hw.optional.arm.FEAT_FHM");
#elif defined(_WIN32)
    dotprod = IsProcessorFeaturePresent(43);  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
    i8mm = IsProcessorFeaturePresent(66);     // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
    // It has no name for fhm, which since Armv8.4 comes with float16 arithmetic.
    fhm = IsProcessorFeaturePresent(67);  // PF_ARM_V82_FP16_INSTRUCTIONS_AVAILABLE
#endif
  }

#if defined(__APPLE__)
  static bool has(const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  }
#endif
};
#endif

}  // namespace

GF_EXPORT int32_t gf_abi_version(void) { return GF_ABI_VERSION; }

// Bytes of a struct of the interface, by name; its mirror in Python must have as many.
GF_EXPORT int32_t gf_abi_bytes(const char* name) {
  if (strcmp(name, "gf_tensor") == 0) return sizeof(gf_tensor);
  if (strcmp(name, "gf_op") == 0) return sizeof(gf_op);
  return 0;
}

// Whether this machine can run the library built for instruction set `isa`. Asked of the baseline
// library, which runs everywhere, before any other is loaded. Asking for `amx` asks the system for
// tile registers too, once for the whole process.
GF_EXPORT int32_t gf_cpu_supports(const char* isa) {
  if (strcmp(isa, "baseline") == 0) return 1;
#if defined(__x86_64__)
  const Features f;
  const bool avx2 = f.avx && f.bit(f.ecx1, 12) && f.bit(f.ecx1, 29) && f.bit(f.ebx7, 5) &&
                    f.bit(f.ebx7, 8);  // FMA, F16C, AVX2, BMI2
  const bool avx512 = avx2 && f.wide && f.bit(f.ebx7, 16) && f.bit(f.ebx7, 17) &&
                      f.bit(f.ebx7, 30) && f.bit(f.ebx7, 31) && f.bit(f.ecx7, 11);
  if (strcmp(isa, "avx2") == 0) return avx2;
  if (strcmp(isa, "avx512") == 0) return avx512;
  const bool bf16 = avx512 && f.bit(f.eax71, 5);
  if (strcmp(isa, "avx512bf16") == 0) return bf16;
  if (strcmp(isa, "amx") == 0) {
    const bool has = f.tiles && f.bit(f.edx7, 22) && f.bit(f.edx7, 24) && f.bit(f.edx7, 25);
    return bf16 && has && may_use_tiles();
  }
#elif defined(__aarch64__) || defined(_M_ARM64)
  const arm_features has;
  if (strcmp(isa, "dotprod") == 0) return has.dotprod;
  if (strcmp(isa, "i8mm") == 0) return has.dotprod && has.i8mm && has.fhm;
#endif
  return 0;
}
