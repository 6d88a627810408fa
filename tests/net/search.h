#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

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

/// Cases of a kind, and what was looked at.
struct KindTotals {
  int64_t cases = 0;
  int64_t bits = 0;      ///< had one rank's bits
  int64_t fast = 0;      ///< sums are FAST, which have nobody's bits
  int64_t diverged = 0;  ///< ended early, as one rank did
  int64_t compared = 0;  ///< with the oracle
  int64_t wrong = 0;
  int64_t refused = 0;  ///< layouts that were drawn, and that the model, the batch or the config cannot have
  KindTotals& operator+=(const KindTotals& more);
};

struct SearchTotals {
  KindTotals all;
  int64_t tensors = 0, sharp_tensors = 0, states = 0, sharp_states = 0;  ///< see OracleReport
  std::map<std::string, int64_t> findings;                               ///< by name_of their kind
  std::map<std::string, KindTotals> kinds;  ///< by schedule, by way to update, by recomputation
  SearchTotals& operator+=(const SearchTotals& more);
  /// Some lines, with a table of the kinds.
  std::string text() const;
};

/// Tries cases until there are no more, or `found` returns false.
SearchTotals search(const Search& search, const std::function<bool(const FoundCase&)>& found);

/// What somebody needs to see it again: the finding, the smallest case that has one of its kind, and the
/// seed.
std::string report_of(const FoundCase& found, const CheckOptions& options = {});

/// The layout's words that SearchTotals counts cases by: "zero_bubble", "shard", "recompute full".
std::vector<std::string> kinds_of(const layout::Layout& layout);

/// A number that is another one if the generator makes something else of seeds, so that numbers of cases can
/// be said to be of the same ones.
uint64_t generator_hash(const GeneratorOptions& options);

/// Changes by day: LOCKSTEP_NET_SEED, where it is set.
uint64_t seed_of_today();

}  // namespace lockstep::net
