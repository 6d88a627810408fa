#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "compare/results.h"

namespace lockstep::compare {

/// In the order of rows: a layout has the colour and the mark of its place in every chart.
std::vector<std::string> kinds_of(const CompareResults& results);
inline int style_of(const CompareResults& results, const std::string& kind) {
  const std::vector<std::string> kinds = kinds_of(results);
  return static_cast<int>(std::ranges::find(kinds, kind) - kinds.begin());
}

// Parts of the page, each with its charts, and its numbers below.
std::string throughput_part(const CompareResults& results);
std::string steps_part(const CompareResults& results);
std::string staleness_part(const CompareResults& results);
std::string traffic_part(const CompareResults& results);
std::string links_part(const CompareResults& results);
std::string losses_part(const CompareResults& results);
std::string predictions_part(const CompareResults& results);
std::string proofs_part(const CompareResults& results);

}  // namespace lockstep::compare
