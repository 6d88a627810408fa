#include "op_run.h"

#include <algorithm>

namespace lockstep::ops {

OpRun::OpRun(Bench& bench, const Op& op, const std::vector<TensorSpec>& inputs, const KernelOptions& options,
             int below)
    : bench_(bench),
      signature_(infer(op, inputs)),
      kernel_(make_kernel(device::DeviceKind::cuda, op, inputs, options)) {
  kernel_->prepare(bench.device());
  make_tensors(inputs, options, below);
  int64_t workspace_bytes = 0;
  for (const auto phase : {KernelPhase::forward, KernelPhase::backward_input, KernelPhase::backward_weight})
    workspace_bytes = std::max(workspace_bytes, kernel_->workspace_bytes(phase));
  arguments_ = {.inputs = inputs_,
                .outputs = outputs_,
                .parameters = parameters_,
                .auxiliary = auxiliary_,
                .output_gradients = output_gradients_,
                .input_gradients = input_gradients_,
                .parameter_gradients = parameter_gradients_,
                .metrics = static_cast<double*>(bench.make_bytes(kMetricCount * sizeof(double))),
                .workspace = bench.make_bytes(workspace_bytes),
                .constants = bench.make_copy(StepConstants{})};
}

void OpRun::make_tensors(const std::vector<TensorSpec>& inputs, const KernelOptions& options, int below) {
  const auto make = [&](const Shape& shape, DType dtype) {
    return bench_.make({shape, dtype == DType::float32 ? options.compute : dtype}, below);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Shape shape = inputs[i].shape.batched(options.batch);
    inputs_.push_back(make(shape, inputs[i].dtype));
    input_gradients_.push_back(signature_.differentiable[i] ? make(shape, inputs[i].dtype) : Tensor{});
  }
  for (const auto& spec : signature_.outputs) {
    const Shape shape = spec.shape.batched(options.batch);
    outputs_.push_back(signature_.alias ? inputs_[0] : make(shape, spec.dtype));
    output_gradients_.push_back(make(shape, spec.dtype));
  }
  // A neighbour's tensors follow the op's own, in its input's shape.
  if (options.fused.add_before) {
    inputs_.push_back(make(inputs_[0].shape, DType::float32));
    outputs_.push_back(make(inputs_[0].shape, DType::float32));
  }
  if (options.fused.fork_before) output_gradients_.push_back(make(inputs_[0].shape, DType::float32));
  for (const auto& spec : signature_.parameters) {
    parameters_.push_back(bench_.make({spec.shape, spec.narrow ? options.compute : DType::float32}));
    parameter_gradients_.push_back(bench_.make({spec.shape, DType::float32}));
  }
  for (const auto& spec : signature_.auxiliary)
    auxiliary_.push_back(
        bench_.make({spec.per_sample ? spec.shape.batched(options.batch) : spec.shape, spec.dtype}, below));
}

}  // namespace lockstep::ops
