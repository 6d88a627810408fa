#include "train/faults/straggler.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/error.h"

namespace lockstep::train {
namespace {

constexpr double kMostFactor = 1000;

template <class Number>
bool reads_as(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

Straggler parse_straggler(const std::string& text) {
  const size_t colon = text.find(':');
  Straggler straggler;
  const bool reads = colon != std::string::npos &&
                     reads_as(std::string_view(text).substr(0, colon), straggler.rank) &&
                     reads_as(std::string_view(text).substr(colon + 1), straggler.factor);
  if (!reads || straggler.rank < 0 || !(straggler.factor >= 1 && straggler.factor <= kMostFactor))
    throw ConfigError(fmt::format(
        "--straggler {}: expected RANK:FACTOR with a factor from 1 to {}, such as 1:2", text, kMostFactor));
  return straggler;
}

std::string to_text(const Straggler& straggler) {
  return fmt::format("{}:{}", straggler.rank, straggler.factor);
}

}  // namespace lockstep::train
