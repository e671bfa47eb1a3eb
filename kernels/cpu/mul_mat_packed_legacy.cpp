// Packed kernels of the types with one scale for 32 elements.
#include "cpu/mul_mat_types.h"

namespace gf {

const PackedType* packed_legacy_type(int type) {
  static constexpr PackedType kTypes[] = {packed_type<LoadQ4_0>(), packed_type<LoadQ4_1>(),
                                          packed_type<LoadQ5_0>(), packed_type<LoadQ5_1>(),
                                          packed_type<LoadQ8_0>()};
  for (const PackedType& t : kTypes) {
    if (t.type == type) return &t;
  }
  return nullptr;
}

}  // namespace gf
