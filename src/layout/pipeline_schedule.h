#pragma once

#include <vector>

#include "layout/layout.h"

namespace lockstep::layout {

/// What a rank of a pipeline does with one micro-batch of one chunk (piece) of the model that it holds.
/// `backward` is the whole of it; `backward_input` and `backward_weight` are its two halves, where a schedule
/// runs them apart. `recompute` makes again the activations that a forward has not kept.
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
  /// With Recompute::full; what is computed again with `selective` is a small part of a backward, and counts
  /// as that. A `recompute` stands before each backward (or backward_input) that does not directly follow its
  /// own forward.
  bool recomputes = false;
};

/// The pipeline of each replica of `layout`.
PipelineShape pipeline_shape(const Layout& layout, int micro_batches);

/// Whether the schedule can take so many micro-batches.
bool takes(const PipelineShape& shape);

/// Units of one stage in the order in which it runs them. In every schedule the forwards of a chunk are in
/// ascending order of micro-batches, and so is whatever adds to its gradients (backward, backward_weight):
/// sums have the same bits in all of them.
///
/// Throws ConfigError for shapes that the schedule cannot take: interleaved needs a multiple of `stages`
/// micro-batches, the others take any number. (ZB-H1 needs `stages` of them to be as short as it can be.)
/// REQUIRES: numbers of at least 1; chunks is 1 unless interleaved; 0 <= stage < stages.
std::vector<PipelineUnit> pipeline_schedule(const PipelineShape& shape, int stage);

}  // namespace lockstep::layout
