#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// For each name whether it is for evaluation: of each class the share `fraction`, rounded to whole samples.
/// Which ones is drawn from the seed and the names: neither order nor other classes matter.
/// REQUIRES: one label, at least 0, for each name; names of a class differ.
std::vector<bool> draw_split(std::span<const std::string_view> names, std::span<const int32_t> labels,
                             double fraction, uint64_t seed);

/// The same for samples whose names are their numbers.
std::vector<bool> draw_numbers(std::span<const int64_t> numbers, std::span<const int32_t> labels,
                               double fraction, uint64_t seed);

}  // namespace lockstep::data
