// Typed views of label arrays, and the dispatch from runtime types to them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "fastbudget/counting.h"

namespace fastbudget::counting {

// Pieces are long enough that handing one out costs nothing beside counting it.
constexpr std::int64_t kGrain = 1 << 17;

template <typename T>
struct View {
  const T* data;
  std::int64_t stride;
  // Negative labels wrap to huge values, so one unsigned comparison checks both ends.
  std::uint64_t operator[](std::int64_t i) const {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(data[i * stride]));
  }
};

template <typename F>
auto with_view(const Labels& labels, F&& f) {
  switch (labels.type) {
    case LabelType::kUint8: return f(View<std::uint8_t>{static_cast<const std::uint8_t*>(labels.data), labels.stride});
    case LabelType::kInt32: return f(View<std::int32_t>{static_cast<const std::int32_t*>(labels.data), labels.stride});
    default: return f(View<std::int64_t>{static_cast<const std::int64_t*>(labels.data), labels.stride});
  }
}

template <typename F>
auto with_views(const Labels& a, const Labels& b, F&& f) {
  return with_view(a, [&](auto x) { return with_view(b, [&](auto y) { return f(x, y); }); });
}

// The first pair with a label outside [0, num_classes), as an error; Ok when there is none.
Status find_out_of_range(const Labels& predicted, const Labels& reference, std::int64_t n, std::uint64_t num_classes);

}  // namespace fastbudget::counting
