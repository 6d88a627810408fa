#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/dataset.h"
#include "data/order.h"
#include "model/graph.h"
#include "net/oracle/interpreter.h"

namespace lockstep::net {

/// What training should have come to.
struct Expected {
  std::vector<double> losses, norms;     ///< by step; NaN where all labels are ignored, which is no loss
  double eval_loss = 0;                  ///< likewise
  std::vector<Values> parameters;        ///< after the last step
  std::map<std::string, Values> states;  ///< of the optimizer, "<parameter>.<slot>", likewise
  Kinks kinks;
};

/// The training that a config describes, in double precision: data, losses, gradients, clipping, optimizer.
class OracleTraining {
 public:
  explicit OracleTraining(const config::RunConfig& config);

  Expected train(Roundings* roundings) const;
  /// The largest difference, over parameters, between the slope of the first step's loss along a random
  /// direction and what the gradient says of it, beyond what differences are good for. Relative to both.
  double error_of_gradients(uint64_t seed) const;
  const model::Graph& graph() const { return graph_; }
  std::vector<Values> first_parameters() const;

 private:
  struct Step {
    double loss = 0, count = 0;
    std::vector<Values> gradients;  // means
  };
  struct OptimizerState {
    std::vector<Values> first, second, average;
  };
  std::vector<MicroBatch> batches_of(int64_t step) const;
  MicroBatch read(const data::Dataset& dataset, const std::vector<data::SampleKey>& samples,
                  int64_t first_sample) const;
  Step compute(const std::vector<MicroBatch>& batches, const Pass& pass, bool with_gradients) const;
  double norm_of(const Step& step) const;
  void update(int64_t step, const Step& computed, double scale, std::vector<Values>& parameters,
              OptimizerState& state) const;
  /// By the names that checkpoints have for them.
  std::map<std::string, Values> named(const OptimizerState& state) const;
  double ratio_of(size_t parameter, const Values& gradient, double scale, double decay, const Values& values,
                  const Values& direction) const;
  /// With the averages in place of weights, if the config says so.
  double evaluate(const Pass& pass, const OptimizerState& state) const;
  bool learns(size_t parameter) const;

  config::RunConfig config_;
  model::Graph graph_;
  Interpreter interpreter_;
  data::DatasetPair data_;
  data::SampleOrder order_;
};

}  // namespace lockstep::net
