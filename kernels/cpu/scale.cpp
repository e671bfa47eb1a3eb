// scale: x * s + b.
#include "cpu/elementwise.h"

namespace {
struct scale_params {
  float s, b;
};
}  // namespace

GF_KERNEL(scale) {
  const auto p = gf_params<scale_params>(op);
  const vf s = vf_set(p.s), b = vf_set(p.b);
  gf_map(op, th, [=](vf x) { return x * s + b; });
}
