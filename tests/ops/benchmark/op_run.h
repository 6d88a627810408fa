#pragma once

#include <memory>
#include <vector>

#include "bench.h"
#include "ops/op.h"

namespace lockstep::ops {

/// A kernel of the GPU with tensors of random numbers to run it on. They are there until Bench::release().
class OpRun {
 public:
  /// `inputs` are of one sample; tensors of float32 are made in options.compute instead. Integers are in
  /// [0, below).
  OpRun(Bench& bench, const Op& op, const std::vector<TensorSpec>& inputs, const KernelOptions& options,
        int below = 1);
  OpRun(const OpRun&) = delete;

  const OpSignature& signature() const { return signature_; }
  const KernelArguments& arguments() const { return arguments_; }

  void forward() { kernel_->forward(arguments_, bench_.stream()); }
  void backward_input() { kernel_->backward_input(arguments_, bench_.stream()); }
  void backward_weight() { kernel_->backward_weight(arguments_, bench_.stream()); }

 private:
  void make_tensors(const std::vector<TensorSpec>& inputs, const KernelOptions& options, int below);

  Bench& bench_;
  OpSignature signature_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<Tensor> inputs_, outputs_, parameters_, auxiliary_, output_gradients_, input_gradients_,
      parameter_gradients_;
  KernelArguments arguments_;
};

}  // namespace lockstep::ops
