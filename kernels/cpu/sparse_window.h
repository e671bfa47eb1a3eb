// Single rows that come one after the other, taken some at a time while the next ones are brought.
#pragma once

#include <cstring>

#include "cpu/sparse_types.h"

namespace gf {

// Self, the class that inherits this, has
//   take(rows, tags, n, ahead)   the next n <= kRowsAtOnce rows, in order; `ahead` meanwhile
//   bring(ahead)                 rows that nothing is taken beside
template <class Tag, class Self>
class RowWindow {
 public:
  void add(const char* row, Tag tag) {
    rows_[n_] = row;
    tags_[n_++] = tag;
    if (n_ <= kAhead) {
      if (n_ % kRowsAtOnce == 0) bring_last(kRowsAtOnce);
      return;
    }
    if (n_ == kAhead + kRowsAtOnce) take_first(kRowsAtOnce);
  }

  void finish() {
    if (n_ < kAhead) bring_last(n_ % kRowsAtOnce);
    while (n_ > 0) take_first(n_ < kRowsAtOnce ? n_ : kRowsAtOnce);
  }

 private:
  static constexpr int kAhead = 2 * kRowsAtOnce;

  Self& self() { return static_cast<Self&>(*this); }

  // The first ones are not brought by any before them.
  void bring_last(int n) { self().bring({rows_ + n_ - n, n}); }

  void take_first(int n) {
    self().take(rows_, tags_, n, {rows_ + kAhead, n_ > kAhead ? n_ - kAhead : 0});
    n_ -= n;
    std::memmove(rows_, rows_ + n, n_ * sizeof rows_[0]);
    std::memmove(tags_, tags_ + n, n_ * sizeof tags_[0]);
  }

  int n_ = 0;
  const char* rows_[kAhead + kRowsAtOnce];
  Tag tags_[kAhead + kRowsAtOnce];
};

}  // namespace gf
