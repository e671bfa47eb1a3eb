// What a library says about itself and about the machine it runs on.
#include <string.h>

#include "cpu/abi.h"

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
#endif
  return 0;
}
