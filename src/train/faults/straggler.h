#pragma once

#include <string>

namespace lockstep::train {

/// A worker that is slower than the others: what it computes takes `factor` times as long.
struct Straggler {
  int rank = 0;
  double factor = 1;
  bool operator==(const Straggler&) const = default;
};

/// Reads a text such as "1:2.5". Throws ConfigError, which says what was expected.
Straggler parse_straggler(const std::string& text);
std::string to_text(const Straggler& straggler);

}  // namespace lockstep::train
