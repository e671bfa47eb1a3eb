// What a library says about itself: the ABI it was built for and whether this CPU can run it.
#include "cpu/abi.h"

GF_EXPORT int32_t gf_abi_version(void) { return GF_ABI_VERSION; }
