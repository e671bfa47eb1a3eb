// The 12 bytes of q4_K and q5_K that pack eight 6-bit scales and eight 6-bit mins. Bytes 0..3 hold
// scales 0..3 and bytes 4..7 mins 0..3, in their low six bits; the low halves of scale and min 4..7
// share bytes 8..11, and their high two bits are the top bits of bytes 0..3 and 4..7.
#pragma once

#include "common.h"

GF_HD int gf_scale_k4(const gf_u8* packed, int s) {
  return s < 4 ? packed[s] & 63 : (packed[s + 4] & 15) | (packed[s - 4] >> 6 << 4);
}

GF_HD int gf_min_k4(const gf_u8* packed, int s) {
  return s < 4 ? packed[s + 4] & 63 : (packed[s + 4] >> 4) | (packed[s] >> 6 << 4);
}

// Packs eight scales and eight mins, each in 0..63.
GF_HD void gf_pack_k4(const gf_u8* scale, const gf_u8* min, gf_u8* packed) {
  for (int s = 0; s < 4; ++s) {
    packed[s] = (gf_u8)(scale[s] | (scale[s + 4] >> 4 << 6));
    packed[s + 4] = (gf_u8)(min[s] | (min[s + 4] >> 4 << 6));
    packed[s + 8] = (gf_u8)((scale[s + 4] & 15) | ((min[s + 4] & 15) << 4));
  }
}
