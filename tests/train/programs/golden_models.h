#pragma once

#include <memory>
#include <string>

#include "layout/batch_division.h"
#include "model/graph.h"
#include "model/partition.h"
#include "optim/optimizer.h"
#include "program/segment_code.h"

namespace lockstep::train {

/// A small model that a golden program was written for, cut into the segments that the program names, with
/// what else decides its numbers.
struct GoldenModel {
  model::Graph graph;
  model::Partition partition;
  layout::BatchDivision division;
  optim::OptimizerOptions optimizer;
  optim::GroupRates group_rates;
  double clip_norm = 0;
  DType wire = DType::float32;
  bool error_feedback = false;

  /// Kernels of it for training, or for evaluation.
  std::unique_ptr<program::ModelCode> code(bool training) const;
};

/// The model of tests/program/goldens/`golden`.program; null where no executor runs one of its kinds of
/// instructions, so that there is nothing to fit, and where sizes are made up.
std::unique_ptr<GoldenModel> model_of_golden(const std::string& golden);

}  // namespace lockstep::train
