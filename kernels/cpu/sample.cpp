// sample: the next token from its logits, the same on every backend to the bit. The order of every
// operation is defined in engine/ops/sample.py, whose step numbers this file uses.
#include <math.h>

#include "cpu/top_k.h"

namespace {

struct settings {  // the operand's layout
  float temp, top_k, top_p, min_p, repeat_penalty, repeat_last_n;
};

// Truncated; out of range goes to the nearest end.
int64_t whole(float x) { return static_cast<int64_t>(fminf(fmaxf(x, -0x1p31f), 0x1p31f)); }

float exp32(float x) {
  if (!(x >= -87.0f)) return 0.0f;
  const float n = rintf(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * (r * r) + r) + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return y * power;
}

float uniform(uint64_t seed, uint64_t step) {
  uint64_t z = seed + (step + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-24f;
}

// Step 1. Reads the original logits, so that a token met twice is penalized once.
void penalize(const float* logits, float* l, int64_t n_vocab, const settings& s, const int32_t* ids,
              int64_t h) {
  const int64_t n = whole(s.repeat_last_n);
  if (s.repeat_penalty == 1.0f || n == 0) return;
  for (int64_t i = n < 0 || n > h ? 0 : h - n; i < h; ++i) {
    const int32_t t = ids[i];
    if (t < 0 || t >= n_vocab) continue;
    l[t] = logits[t] > 0.0f ? logits[t] / s.repeat_penalty : logits[t] * s.repeat_penalty;
  }
}

// The candidates in order, and the weights exp((l[i] - l[0]) / temp).
struct candidates {
  const float* l;
  const int32_t* order;
  int64_t count;

  float below(int64_t i) const { return l[order[i]] - l[order[0]]; }

  // The first i whose sum of weights up to and including it satisfies enough(sum, total); or the
  // last one.
  template <typename Weight, typename Enough>
  int64_t find(Weight&& weight, Enough&& enough) const {
    float total = 0.0f, sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) total += weight(i);
    for (int64_t i = 0; i < count; ++i) {
      sum += weight(i);
      if (enough(sum, total)) return i;
    }
    return count - 1;
  }
};

// Steps 2 to 6.
int32_t choose(const float* l, int64_t n_vocab, const settings& s, float u, int32_t* order) {
  if (s.temp <= 0.0f) return static_cast<int32_t>(gf_argmax(l, n_vocab));
  const int64_t k = whole(s.top_k);
  candidates c{l, order, k > 0 ? std::min(k, n_vocab) : n_vocab};
  if (c.count > n_vocab / 16) {
    gf_sort_descending(l, n_vocab, order, order + n_vocab);
  } else {
    gf_top_k(l, n_vocab, c.count, order);
  }
  const auto plain = [&c](int64_t i) { return exp32(c.below(i)); };
  if (s.top_p < 1.0f) {
    c.count = 1 + c.find(plain, [&](float sum, float total) { return sum >= s.top_p * total; });
  }
  if (s.min_p > 0.0f) {
    int64_t kept = 0;
    for (int64_t i = 0; i < c.count; ++i) kept += plain(i) >= s.min_p;
    c.count = std::max<int64_t>(1, kept);
  }
  const auto tempered = [&](int64_t i) { return exp32(c.below(i) / s.temp); };
  return order[c.find(tempered, [u](float sum, float total) { return sum > u * total; })];
}

// Bytes a row needs: the logits, the order of the candidates, and as much again to sort them.
int64_t row_scratch(const gf_op* op) {
  return op->src[0].ne[0] * int64_t{sizeof(float) + 2 * sizeof(int32_t)};
}

void sample_row(const gf_op* op, int64_t row, unsigned char* scratch) {
  const auto* const logits = reinterpret_cast<const float*>(gf_row_ptr(op->src[0], row));
  const int64_t n_vocab = op->src[0].ne[0];
  settings s;
  std::memcpy(&s, gf_row_ptr(op->src[1], row), sizeof s);
  uint64_t rng[2];
  std::memcpy(rng, gf_row_ptr(op->src[2], row), sizeof rng);
  const auto* const history = reinterpret_cast<const int32_t*>(gf_row_ptr(op->src[3], row));
  auto* const l = reinterpret_cast<float*>(scratch);
  // A broken model's NaN is never chosen before a number.
  for (int64_t i = 0; i < n_vocab; ++i) l[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
  penalize(logits, l, n_vocab, s, history, op->src[3].ne[0]);
  auto* const order = reinterpret_cast<int32_t*>(l + n_vocab);
  static_cast<int32_t*>(op->dst.data)[row] = choose(l, n_vocab, s, uniform(rng[0], rng[1]), order);
}

}  // namespace

GF_KERNEL_SCRATCH(sample) {
  return row_scratch(op) * std::min<int64_t>(op->src[0].ne[1], n_threads);
}

GF_KERNEL(sample) {
  const int64_t n = op->src[0].ne[1];
  if (th->ith >= n) return;
  unsigned char* const scratch = th->scratch + th->ith * row_scratch(op);
  for (int64_t row = gf_steal(th); row < n; row = gf_steal(th)) sample_row(op, row, scratch);
}
