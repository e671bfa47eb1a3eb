// Packed kernels of the K-quants.
#include "cpu/mul_mat_types.h"

namespace gf {

const PackedType* packed_k_type(int type) {
  static constexpr PackedType kTypes[] = {packed_type<LoadQ2_K>(), packed_type<LoadQ3_K>(),
                                          packed_type<LoadQ4_K>(), packed_type<LoadQ5_K>(),
                                          packed_type<LoadQ6_K>()};
  for (const PackedType& t : kTypes) {
    if (t.type == type) return &t;
  }
  return nullptr;
}

}  // namespace gf
