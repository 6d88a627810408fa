#pragma once

#include <vector>

#include "layout/layout.h"

namespace lockstep::layout {

/// What a rank of a pipeline does at once with one micro-batch and one of its chunks (pieces) of the model.
/// `backward` is a whole backward; `backward_input` and `backward_weight` are its halves, if a schedule runs
/// them separately. `recompute` computes again the activations that a forward has not kept.
struct PipelineUnit {
  enum class Kind { forward, recompute, backward, backward_input, backward_weight };
  Kind kind;
  int micro_batch;
  int chunk;
  bool operator==(const PipelineUnit&) const = default;
};

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int stages = 1, micro_batches = 1;
  /// Pieces of the model on each rank: 1 unless interleaved. Piece (chunk, stage) is number
  /// chunk * stages + stage of the model.
  int chunks = 1;
  /// With Recompute::full there is a `recompute` before each backward (or backward_input) that does not
  /// directly follow its own forward. What `selective` recomputes is a small part of a backward, and counts
  /// as such.
  bool recomputes = false;
};

/// The pipeline of each replica of `layout`.
PipelineShape pipeline_shape(const Layout& layout, int micro_batches);

/// Whether the schedule can take this number of micro-batches.
bool takes(const PipelineShape& shape);

/// The units of one stage, in the order in which it runs them. In every schedule a chunk's forwards are in
/// ascending order of micro-batches, and so are the units that add to its gradients (backward,
/// backward_weight). Therefore sums have the same bits in all schedules.
///
/// Throws ConfigError for shapes that the schedule cannot take: interleaved needs a multiple of `stages`
/// micro-batches, the others take any number. (ZB-H1 is shortest from `stages` micro-batches on.)
/// REQUIRES: numbers of at least 1; chunks is 1 unless interleaved; 0 <= stage < stages.
std::vector<PipelineUnit> pipeline_schedule(const PipelineShape& shape, int stage);

}  // namespace lockstep::layout
