#pragma once

#include <string>

#include "compare/results.h"

namespace lockstep::compare {

/// The comparison as one self-contained HTML page without scripts, for light and dark backgrounds, narrow
/// screens and paper. Each drawing has its numbers in a table below.
std::string compare_page(const CompareResults& results);

}  // namespace lockstep::compare
