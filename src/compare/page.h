#pragma once

#include <string>

#include "compare/results.h"

namespace lockstep::compare {

/// The comparison as one HTML page that needs nothing else: no network, no scripts; on light and dark ground,
/// on narrow screens and on paper. Each drawing has its numbers in a table below.
std::string compare_page(const CompareResults& results);

}  // namespace lockstep::compare
