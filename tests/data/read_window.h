#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// A sample of tokens, and those that follow them.
struct Window {
  std::vector<int32_t> tokens, labels;
  bool operator==(const Window&) const = default;
};

inline Window read_window(const Dataset& data, int64_t sample) {
  const auto context = static_cast<size_t>(data.fields()[0].spec.shape.count());
  Window window{std::vector<int32_t>(context, 77), std::vector<int32_t>(context, 77)};
  std::byte* const destinations[] = {reinterpret_cast<std::byte*>(window.tokens.data()),
                                     reinterpret_cast<std::byte*>(window.labels.data())};
  data.read(sample, destinations);
  return window;
}

}  // namespace lockstep::data
