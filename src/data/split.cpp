#include "data/split.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "base/hash.h"
#include "base/index.h"

namespace lockstep::data {

std::vector<bool> draw_split(std::span<const std::string_view> names, std::span<const int32_t> labels,
                             double fraction, uint64_t seed) {
  // Of each class, those with the smallest hashes of their names evaluate; equal hashes go by name.
  std::vector<std::tuple<int32_t, uint64_t, std::string_view, size_t>> drawn;
  drawn.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    drawn.emplace_back(labels[i], hash64(names[i], seed), names[i], i);
  std::ranges::sort(drawn);
  std::vector<bool> evaluates(names.size());
  for (size_t begin = 0; begin < drawn.size();) {
    size_t end = begin;
    while (end < drawn.size() && std::get<0>(drawn[end]) == std::get<0>(drawn[begin])) ++end;
    const auto count = static_cast<size_t>(std::llround(fraction * static_cast<double>(end - begin)));
    for (size_t i = begin; i < begin + count; ++i) evaluates[std::get<3>(drawn[i])] = true;
    begin = end;
  }
  return evaluates;
}

std::vector<bool> draw_numbers(std::span<const int64_t> numbers, std::span<const int32_t> labels,
                               double fraction, uint64_t seed) {
  std::vector<std::string> texts;
  for (const int64_t number : numbers) texts.push_back(std::to_string(number));
  return draw_split(std::vector<std::string_view>(texts.begin(), texts.end()), labels, fraction, seed);
}

}  // namespace lockstep::data
