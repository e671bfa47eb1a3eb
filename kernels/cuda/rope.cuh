// The angle of rotary position embedding. Angles are kept in double until whole turns are taken
// off, so that large positions stay exact. Each operation is rounded as written: a product and a
// sum become one operation in one kernel and two in another otherwise, and several kernels turn
// heads.
#pragma once

#include "cuda/common.cuh"

struct RopeNumbers {
  double log2_step;            // log2 of the ratio between the frequencies of neighbours
  double yarn_low, yarn_high;  // the pairs between which YaRN blends
  float freq_scale, ext_factor, magnitude;
};

// The angle by which pair i turns from one position to the next. factor divides the frequency.
__device__ __forceinline__ double angle_of(const RopeNumbers& a, int i, float factor) {
  const double extrapolated = exp2(__dmul_rn(i, a.log2_step)) / factor;
  double angle = extrapolated * a.freq_scale;
  if (a.ext_factor != 0.0f) {
    const double width = fmax(0.001, a.yarn_high - a.yarn_low);
    const double ramp = 1.0 - fmin(1.0, fmax(0.0, (i - a.yarn_low) / width));
    const double mix = __dmul_rn(ramp, a.ext_factor);
    angle = fma(angle, 1.0 - mix, __dmul_rn(extrapolated, mix));
  }
  return angle;
}

// Sine and cosine of an angle, times the magnitude.
__device__ __forceinline__ void turn(const RopeNumbers& a, double angle, float* s, float* c) {
  const double turns = __dmul_rn(angle, 0.15915494309189533577);
  sincospif((float)(2.0 * (turns - rint(turns))), s, c);
  *s *= a.magnitude;
  *c *= a.magnitude;
}

// How the heads of columns turn, where the kernel that multiplies makes the angles: its columns may
// have been rounded elsewhere.
struct Turns {
  RopeNumbers rope;
  const i32* pos;        // of each column
  const float* factors;  // of the frequencies, or null

  // Of pair i, from one position to the next.
  __device__ __forceinline__ double angle(int i) const {
    return angle_of(rope, i, factors ? factors[i] : 1.0f);
  }
  // Cosine and sine of such an angle in a column.
  __device__ __forceinline__ float2 at(int column, double angle) const {
    float2 found;
    turn(rope, __ldcg(pos + column) * angle, &found.y, &found.x);
    return found;
  }
};
