#pragma once

#include <vector>

#include "comm/measure.h"
#include "plan/step_prediction.h"

namespace lockstep::train {

/// Of the ranks but 0, the first on its host and the first on another: messages with them are what
/// predictions need.
std::vector<int> typical_peers(const std::vector<int>& hosts);

/// What predictions take from measurements. `hosts`: of each rank; `shared_sums`: through memory, of a short
/// sum first and of a long one last; empty if the ranks share none.
plan::MachineFigures machine_figures(const std::vector<int>& hosts, const std::vector<comm::PairTimes>& pairs,
                                     const std::vector<comm::SumTime>& shared_sums, double addition_per_byte);

}  // namespace lockstep::train
