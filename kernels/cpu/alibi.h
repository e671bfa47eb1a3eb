// ALiBi slopes (Press et al. 2021); head counts that are no power of two interleave the slopes of
// the next one, as ggml does.
#pragma once

#include <math.h>
#include <stdint.h>

// The slope of head h; 1 when max_bias is 0.
inline float gf_alibi_slope(int64_t h, int64_t n_head, float max_bias) {
  if (max_bias <= 0.0f) return 1.0f;
  int64_t p = 1;
  while (2 * p <= n_head) p *= 2;
  const double power = h < p ? static_cast<double>(h + 1) / p : (2.0 * (h - p) + 1) / (2.0 * p);
  return static_cast<float>(exp2(-max_bias * power));
}
