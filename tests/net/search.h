#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "net/case_generator.h"
#include "net/check.h"

namespace lockstep::net {

/// Many cases of one seed.
struct Search {
  uint64_t seed = 1;
  int64_t first = 0, cases = 300;
  GeneratorOptions generator;
  CheckOptions check;
};

struct FoundCase {
  uint64_t seed = 0;  ///< of the case
  int64_t number = 0;
  Case test_case;
  Finding finding;
};

struct SearchTotals {
  int64_t cases = 0, wrong = 0;
  int64_t compared = 0;  ///< with the oracle
  int64_t tensors = 0, sharp_tensors = 0;
  SearchTotals& operator+=(const SearchTotals& more);
  std::string text() const;
};

/// Tries cases until there are no more, or `found` returns false.
SearchTotals search(const Search& search, const std::function<bool(const FoundCase&)>& found);

/// What somebody needs to see it again: the finding, the smallest case that has one of its kind, and the
/// seed.
std::string report_of(const FoundCase& found, const CheckOptions& options = {});

/// Changes by day: LOCKSTEP_NET_SEED, where it is set.
uint64_t seed_of_today();

}  // namespace lockstep::net
