#pragma once

#include <gmock/gmock.h>

#include <string>
#include <string_view>

namespace lockstep {

/// A text that has all parts of `parts` in this order; " ... " stands between parts. For messages whose words
/// may change, but not what they name: Mentions("parallel.sync ... 'dp=2'").
MATCHER_P(Mentions, parts, "mentions, in this order, " + ::testing::PrintToString(parts)) {
  static constexpr std::string_view kBetween = " ... ";
  const std::string text = arg;
  const std::string all = parts;
  std::string_view rest = all;
  for (size_t from = 0;;) {
    const size_t end = rest.find(kBetween);
    const std::string_view part = rest.substr(0, end);
    const size_t at = text.find(part, from);
    if (at == std::string::npos) return false;
    if (end == std::string_view::npos) return true;
    from = at + part.size();
    rest.remove_prefix(end + kBetween.size());
  }
}

}  // namespace lockstep
