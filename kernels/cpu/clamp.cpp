// clamp: each element moved into [min, max].
#include "cpu/elementwise.h"

namespace {
struct clamp_params {
  float min, max;
};
}  // namespace

GF_KERNEL(clamp) {
  const auto p = gf_params<clamp_params>(op);
  const vf lo = vf_set(p.min), hi = vf_set(p.max);
  gf_map(op, th, [=](vf x) { return vf_min(hi, vf_max(lo, x)); });
}
