#include "data/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "lockstep/error.h"

namespace lockstep::data {

std::vector<bool> draw_evaluation(const SplitOptions& split, const std::vector<uint64_t>& units) {
  require(split.train_fraction >= 0 && split.train_fraction <= 1,
          fmt::format("data: train_fraction: expected a number from 0 to 1, found {}", split.train_fraction));
  std::vector<uint64_t> drawn(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    const Philox::Block counter{{static_cast<uint32_t>(units[i]), static_cast<uint32_t>(units[i] >> 32), 0,
                                 static_cast<uint32_t>(RandomPurpose::data_split)}};
    const auto block = Philox::generate(counter, split.seed);
    drawn[i] = uint64_t{block.word[0]} << 32 | block.word[1];
  }
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto less = [&](size_t a, size_t b) { return drawn[a] != drawn[b] ? drawn[a] < drawn[b] : a < b; };
  std::ranges::sort(order, less);
  // A fraction of 0.9 is a little less in binary.
  const auto evaluate =
      static_cast<size_t>(std::floor((1 - split.train_fraction) * static_cast<double>(units.size()) + 1e-9));
  std::vector<bool> evaluates(units.size(), false);
  for (size_t i = 0; i < evaluate; ++i) evaluates[order[i]] = true;
  return evaluates;
}

}  // namespace lockstep::data
