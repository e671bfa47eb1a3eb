// What a library says about itself and about the machine it runs on.
#include <string.h>

#include "cpu/abi.h"

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
  bool dotprod = false, i8mm = false;

  arm_features() {
#if defined(__linux__)
    dotprod = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
    i8mm = getauxval(AT_HWCAP2) >> 13 & 1;    // HWCAP2_I8MM
#elif defined(__APPLE__)
    dotprod = has("hw.optional.arm.FEAT_DotProd");
    i8mm = has("hw.optional.arm.FEAT_I8MM");
#elif defined(_WIN32)
    dotprod = IsProcessorFeaturePresent(43);  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
    i8mm = IsProcessorFeaturePresent(66);     // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
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
// library, which runs everywhere, before any other is loaded.
GF_EXPORT int32_t gf_cpu_supports(const char* isa) {
  if (strcmp(isa, "baseline") == 0) return 1;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (strcmp(isa, "avx2") == 0) return avx2;
  if (strcmp(isa, "avx512") == 0) return avx512;
  if (strcmp(isa, "avx512bf16") == 0) return avx512 && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__) || defined(_M_ARM64)
  const arm_features has;
  if (strcmp(isa, "dotprod") == 0) return has.dotprod;
  if (strcmp(isa, "i8mm") == 0) return has.dotprod && has.i8mm;
#endif
  return 0;
}
