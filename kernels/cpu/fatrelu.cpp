// fatrelu: x where it is above a cut, else 0.
#include "cpu/elementwise.h"

namespace {
struct fatrelu_params {
  float cut;
};
}  // namespace

GF_KERNEL(fatrelu) {
  const vf cut = vf_set(gf_params<fatrelu_params>(op).cut), zero = vf_zero();
  // min and max give their second operand for a NaN, which so stays.
  gf_map(op, th, [=](vf x) { return vf_select(vf_lt(cut, x), x, vf_min(zero, vf_max(zero, x))); });
}
