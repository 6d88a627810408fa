#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/graph.h"
#include "ops/op.h"

namespace lockstep::infer {

/// A model on the CPU, for what it says of one sample: no trainer, no program, no gradients. Values are
/// float32. Not thread-safe.
class Evaluator {
 public:
  /// Parameters are zeros until somebody writes them. Throws ConfigError if the graph does not store float32.
  Evaluator(model::Graph graph, int threads);

  const model::Graph& graph() const { return graph_; }
  /// Memory of a parameter, in the graph's order: whoever loads the model writes it.
  Tensor parameter(int id) const;
  /// Memory of a model input, as the graph names it. Throws ConfigError if there is none of this name.
  Tensor input(std::string_view name) const;

  /// Computes everything but the loss from the inputs, and returns the loss's first input: logits. They are
  /// valid until the next call.
  Tensor evaluate();

 private:
  struct Step {
    std::unique_ptr<ops::Kernel> kernel;
    std::vector<Tensor> inputs, outputs, parameters, auxiliary;
  };

  Tensor allocate(const TensorSpec& spec);
  void place_values();
  void add_step(int node, int threads);

  model::Graph graph_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<device::Buffer> buffers_;
  std::vector<Tensor> values_, parameters_;
  std::vector<Step> steps_;
  device::Buffer workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace lockstep::infer
