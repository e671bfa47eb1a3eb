// Packed kernels of the types that look values up, and of the ternary one.
#include "cpu/mul_mat_load_table.h"
#include "cpu/mul_mat_types.h"

namespace gf {

const PackedType* packed_table_type(int type) {
  static constexpr PackedType kTypes[] = {packed_type<LoadIQ4_NL>(), packed_type<LoadIQ4_XS>(),
                                          packed_type<LoadMXFP4>(), packed_type<LoadNVFP4>(),
                                          packed_type<LoadTQ2_0>()};
  for (const PackedType& t : kTypes) {
    if (t.type == type) return &t;
  }
  return nullptr;
}

}  // namespace gf
