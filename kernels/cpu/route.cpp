// route, route_weights: which experts a token goes to, and what share each of them has.
#include <math.h>

#include "cpu/top_k.h"
#include "cpu/vmath.h"

namespace {

enum score { SOFTMAX, SIGMOID, CHOSEN };

struct route_params {
  int32_t n_used, score, n_group, n_group_used;
};

struct route_weights_params {
  int32_t score, norm;
  float scale;
};

// In y, whose first n floats are a row's logits, the scores of the n experts.
void scores(const float* x, int64_t n, int32_t score, float* y) {
  if (score == CHOSEN) {
    std::memcpy(y, x, n * sizeof(float));
  } else if (score == SIGMOID) {
    for (int64_t i = 0; i < n; i += VL) {
      vf_store_to(y + i, vf_sigmoid(vf_load_to(x + i, n - i)), n - i);
    }
  } else {
    const vf top = vf_set(vf_row_max(x, n));
    for (int64_t i = 0; i < n; i += VL) {
      vf_store_to(y + i, vf_exp(vf_load_to(x + i, n - i) - top), n - i);
    }
    const vf inverse = vf_set(1.0f / vf_row_sum(y, n));
    for (int64_t i = 0; i < n; i += VL) {
      vf_store_to(y + i, vf_load_to(y + i, n - i) * inverse, n - i);
    }
  }
}

// The scores of groups that are not among the best made the least there are.
void keep_groups(float* s, int64_t n, const route_params& p, bool biased, float* of_group,
                 int32_t* order) {
  const int64_t size = n / p.n_group;
  for (int g = 0; g < p.n_group; ++g) {
    float best = -HUGE_VALF, second = -HUGE_VALF;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (s[i] > best) {
        second = best;
        best = s[i];
      } else if (s[i] > second) {
        second = s[i];
      }
    }
    of_group[g] = biased && size > 1 ? best + second : best;
  }
  gf_top_k(of_group, p.n_group, p.n_group, order);
  for (int g = p.n_group_used; g < p.n_group; ++g) {
    for (int64_t i = 0; i < size; ++i) s[order[g] * size + i] = -HUGE_VALF;
  }
}

// Of one thread: scores, scores of groups, and the order of groups.
int64_t scratch_floats(const gf_op* op) { return vf_padded(op->src[0].ne[0]) * 3; }

}  // namespace

GF_KERNEL_SCRATCH(route) { return scratch_floats(op) * 4 * n_threads; }
GF_KERNEL(route) {
  const auto p = gf_params<route_params>(op);
  const gf_tensor& logits = op->src[0];
  const int64_t n = logits.ne[0];
  const auto* const bias = op->n_src > 1 ? static_cast<const float*>(op->src[1].data) : nullptr;
  auto* const s = reinterpret_cast<float*>(th->scratch) + th->ith * scratch_floats(op);
  const gf_range rows = gf_split(op->dst.ne[1], th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    scores(reinterpret_cast<const float*>(gf_row_ptr(logits, r)), n, p.score, s);
    for (int64_t i = 0; bias && i < n; ++i) s[i] += bias[i];
    if (p.n_group > 1) {
      float* const of_group = s + vf_padded(n);
      keep_groups(s, n, p, bias != nullptr, of_group,
                  reinterpret_cast<int32_t*>(of_group + vf_padded(n)));
    }
    gf_top_k(s, n, p.n_used, reinterpret_cast<int32_t*>(gf_row_ptr(op->dst, r)));
  }
}

GF_KERNEL_SCRATCH(route_weights) { return scratch_floats(op) * 4 * n_threads; }
GF_KERNEL(route_weights) {
  const auto p = gf_params<route_weights_params>(op);
  const gf_tensor &logits = op->src[0], &ids = op->src[1];
  const int64_t n = logits.ne[0], k = op->dst.ne[0];
  auto* const s = reinterpret_cast<float*>(th->scratch) + th->ith * scratch_floats(op);
  const gf_range rows = gf_split(op->dst.ne[1], th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    scores(reinterpret_cast<const float*>(gf_row_ptr(logits, r)), n, p.score, s);
    const auto* const id = reinterpret_cast<const int32_t*>(gf_row_ptr(ids, r));
    auto* const w = reinterpret_cast<float*>(gf_row_ptr(op->dst, r));
    float top = -HUGE_VALF, sum = 0.0f;
    for (int64_t j = 0; j < k; ++j) {
      if (id[j] >= 0 && id[j] < n && s[id[j]] > top) top = s[id[j]];
    }
    for (int64_t j = 0; j < k; ++j) {
      const bool known = id[j] >= 0 && id[j] < n;
      w[j] = !known ? 0.0f : p.score == CHOSEN ? expf(s[id[j]] - top) : s[id[j]];
      sum += w[j];
    }
    const bool divides = (p.norm || p.score == CHOSEN) && sum != 0.0f;
    for (int64_t j = 0; j < k; ++j) w[j] = (divides ? w[j] / sum : w[j]) * p.scale;
  }
}
