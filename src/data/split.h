#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// How samples are divided into those that train and those that evaluate.
struct SplitOptions {
  double train_fraction = 1;  ///< the rest is drawn, by `seed`
  std::string eval_list;      ///< a file that lists what evaluates, a line each; "": none
  uint64_t seed = 1;
  bool operator==(const SplitOptions&) const = default;
};

/// Which of the units evaluate: the floor of (1 - train_fraction) of them, drawn by the seed. A unit is known
/// by a hash of its content, so that neither the order of files nor their names matter; of units with equal
/// hashes the first ones count as smaller. Throws ConfigError unless 0 <= train_fraction <= 1.
std::vector<bool> draw_evaluation(const SplitOptions& split, const std::vector<uint64_t>& units);

}  // namespace lockstep::data
