#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// A piece of the model. A stage of a pipeline holds one or several.
struct PieceShare {
  int stage = 0;
  std::string first_layer, last_layer;
  int64_t parameters = 0;  ///< elements that it uses, tied ones with each of their stages
  double time = 0;         ///< its part of a micro-batch's time, by CompiledRun::node_times
};

/// The properties of a pipeline that are known before it runs.
struct PipelineSummary {
  std::vector<PieceShare> pieces;         ///< in the order of the model
  std::vector<int64_t> memory_bytes;      ///< by stage: planned, of a rank
  std::vector<int64_t> activation_bytes;  ///< likewise, of activations at their peak
  int micro_batches = 0;                  ///< of a replica's step, at most
  /// The share of the step in which stages wait for each other, if units of all stages take the same time,
  /// and transfers no time.
  double bubble_fraction = 0;
  double likely_bubble_fraction = 0;  ///< the same with the times of these pieces
};

/// REQUIRES: the layout has several stages.
PipelineSummary summarize_pipeline(const compile::CompiledRun& run);

/// A line for each piece, with its stage's memory, and one about the bubble.
std::string describe(const PipelineSummary& summary, const layout::Layout& layout);

}  // namespace lockstep::plan
