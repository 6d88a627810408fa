#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/graph.h"
#include "ops/op.h"

namespace lockstep::infer {

/// A model on the CPU, for what it says of samples: no trainer, no program, no gradients. Values are float32.
/// Not thread-safe.
class Evaluator {
 public:
  /// `batch`: samples that are computed at once. Parameters are zeros until somebody writes them. Throws
  /// ConfigError if the graph does not store float32.
  Evaluator(model::Graph graph, int threads, int64_t batch = 1);

  const model::Graph& graph() const { return graph_; }
  int64_t batch() const { return batch_; }
  /// Memory of a parameter, in the graph's order: whoever loads the model writes it before the next
  /// evaluation. Call it anew before every later write: kernels keep weights that they have packed until
  /// then.
  Tensor parameter(int id);
  /// Memory of a model input, as the graph names it. Throws ConfigError if there is none of this name.
  Tensor input(std::string_view name) const;
  /// The loss's first input, such as logits: what the last evaluation computed.
  Tensor output() const;

  /// Computes everything but the loss from the inputs, and returns output().
  Tensor evaluate();
  /// The same of positions [first, first + rows) alone, to the same bits. Earlier positions are those that
  /// were computed before; so what attention has seen, or a recurrent layer's state at every position, is not
  /// computed again. REQUIRES: a batch of 1, of a
  /// model whose ops but the loss all state their use of positions (ops::PositionUse).
  void evaluate_rows(int64_t first, int64_t rows);

 private:
  struct Step {
    std::unique_ptr<ops::Kernel> kernel;
    std::vector<Tensor> inputs, outputs, parameters, auxiliary;
    bool in_rows = false;  ///< inputs and outputs are the first rows of values, to be moved to others
  };

  Tensor allocate(const TensorSpec& spec);
  void place_values();
  const std::vector<Step>& steps_of(int64_t rows);
  Step make_step(int node, int64_t rows);
  std::vector<Tensor> auxiliary_of(int node, std::span<const TensorSpec> inputs, bool in_rows);
  void run(const std::vector<Step>& steps, int64_t first);

  model::Graph graph_;
  int threads_;
  int64_t batch_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<device::Buffer> buffers_;
  std::vector<Tensor> values_, parameters_;
  std::map<int64_t, std::vector<Step>> steps_;  // by the rows that they compute; 0: all
  std::map<int, std::vector<Tensor>> states_;   // by node: auxiliary tensors of whole samples
  uint64_t writings_ = 0;                       // of parameters
  device::Buffer workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace lockstep::infer
