// Types whose four-bit codes stand for sixteen fixed values: the values, and how codes are chosen.
// engine/quants/codebook.py is the same, operation by operation, and gives the same bytes.
// Formulas: weighted least squares over a grid of trial scales (llama.cpp's search for IQ4).
// CUDA compiles the searches with -fmad=false, so that they round as they do on the CPU.
#pragma once

#include "search.h"

// Steps that grow away from zero: quantiles of what weights look like (IQ4_NL).
GF_TABLE gf_i8 gf_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers of FP4 E2M1 (OCP Microscaling Formats 1.0), so that they are whole.
GF_TABLE gf_i8 gf_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Code of the IQ4 value next to x; of two as near, the greater.
GF_HD int gf_nearest_iq4(float x) {
  int above = 1;  // the first value beyond x, or the last
  for (int step = 8; step > 0; step /= 2) {
    if (above + step <= 15 && !(x < (float)gf_iq4_values[above + step - 1])) above += step;
  }
  return above - (x - (float)gf_iq4_values[above - 1] < (float)gf_iq4_values[above] - x);
}

// Code k with d * value[k] next to x, the first of equals.
GF_HD int gf_nearest_fp4(float x, float d) {
  int best = 0;
  float least = gf_abs(0.0f * d - x);
  for (int k = 1; k < 16; ++k) {
    const float error = gf_abs((float)gf_fp4_values[k] * d - x);
    if (error < least) {
      best = k;
      least = error;
    }
  }
  return best;
}

// Scale with x ~ scale * value for 32 elements, least in squared error weighted by x^2.
GF_HD float gf_search_iq4(const float* x) {
  float most = x[0];
  for (int j = 1; j < 32; ++j) {
    if (gf_abs(x[j]) > gf_abs(most)) most = x[j];
  }
  if (gf_abs(most) < GF_TINY_GROUP) return 0.0f;
  float scale = 0.0f, best = 0.0f;
  GF_ROLLED
  for (int trial = -8; trial <= 7; ++trial) {  // -8: the scale that maps `most` to the first value
    const float inverse = trial == -8 ? 1.0f / (-most / -127.0f) : (float)(trial - 127) / most;
    float sum_qx = 0.0f, sum_q2 = 0.0f;
    GF_ROLLED
    for (int j = 0; j < 32; ++j) {
      const float q = (float)gf_iq4_values[gf_nearest_iq4(inverse * x[j])];
      const float wq = x[j] * x[j] * q;
      sum_qx += wq * x[j];
      sum_q2 += wq * q;
    }
    if (trial == -8) {
      scale = sum_q2 > 0.0f ? sum_qx / sum_q2 : 0.0f;
      best = scale * sum_qx;
    } else if (sum_q2 > 0.0f && sum_qx * sum_qx > best * sum_q2) {
      scale = sum_qx / sum_q2;
      best = scale * sum_qx;
    }
  }
  return scale;
}

// 32 codes: element j in the low half of byte j, element j + 16 in the high.
GF_HD void gf_pack_iq4(const float* x, float inverse, gf_u8* qs) {
  for (int j = 0; j < 16; ++j) {
    qs[j] = (gf_u8)(gf_nearest_iq4(inverse * x[j]) | gf_nearest_iq4(inverse * x[j + 16]) << 4);
  }
}
