#pragma once

#include <functional>

#include "net/case.h"

namespace lockstep::net {

/// The smallest case found, by leaving out layers, parts of the layout and of the training, and by simpler
/// ops and smaller sizes, one by one, for which `fails` still holds. REQUIRES: fails(test_case). Asks about
/// cases that compile alone, and about no more than `most_tries`.
Case shrink(Case test_case, const std::function<bool(const Case&)>& fails, int most_tries = 2000);

}  // namespace lockstep::net
