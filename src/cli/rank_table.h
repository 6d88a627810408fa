#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::cli {

/// What one rank holds, updates, saves and sends, in bytes.
struct RankShare {
  int rank = 0;
  std::string_view role = "worker";
  int64_t parameters = 0;       ///< held, in float32 (and narrow copies)
  int64_t gradients = 0;        ///< held, of all nodes of the tree
  int64_t optimizer_state = 0;  ///< held
  int64_t updated = 0;          ///< parameters that it updates in a step
  int64_t saved = 0;            ///< its share of a checkpoint
  int64_t sent = 0;             ///< in a step, in theory (ProgramTraffic)
  int64_t shared_memory = 0;    ///< added up in a step in memory that it shares
};

/// The shares of all ranks, from their programs.
std::vector<RankShare> rank_shares(const compile::CompiledRun& run);

/// A line for each rank or, if there are more than eight, the least and the most of each column; then the
/// sum.
std::string describe(const std::vector<RankShare>& shares);
nlohmann::ordered_json json_of(const std::vector<RankShare>& shares);

}  // namespace lockstep::cli
