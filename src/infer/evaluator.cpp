#include "infer/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::infer {

Evaluator::Evaluator(model::Graph graph, int threads)
    : graph_(std::move(graph)), device_(device::make_cpu_device()), stream_(device_->create_stream("infer")) {
  require(graph_.compute == DType::float32, "models are evaluated in float32");
  for (const auto& parameter : graph_.parameters) parameters_.push_back(allocate({parameter.spec.shape}));
  place_values();
  for (int n = 0; n < static_cast<int>(graph_.nodes.size()); ++n)
    if (n != graph_.loss) add_step(n, threads);
  workspace_ = device_->allocate(workspace_bytes_);
}

Tensor Evaluator::allocate(const TensorSpec& spec) {
  const Tensor tensor{nullptr, spec.shape, spec.dtype};
  buffers_.push_back(device_->allocate(tensor.size_bytes()));
  return {buffers_.back().data(), spec.shape, spec.dtype};
}

/// Views have the memory of what they show. Values are kept until the next evaluation, since a sample is
/// small beside the parameters.
void Evaluator::place_values() {
  values_.resize(graph_.values.size());
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    const model::Value& value = graph_.value(v);
    const TensorSpec of_batch{value.spec.shape.batched(1), value.spec.dtype};
    if (value.storage == v)
      nth(values_, v) = allocate(of_batch);
    else
      nth(values_, v) = {nth(values_, value.storage).data, of_batch.shape, of_batch.dtype};
  }
}

void Evaluator::add_step(int number, int threads) {
  const model::Node& node = graph_.node(number);
  std::vector<TensorSpec> inputs;
  Step step;
  for (const int input : node.inputs) {
    inputs.push_back(graph_.logical_spec(input));
    step.inputs.push_back(nth(values_, input));
  }
  for (const int output : node.outputs) step.outputs.push_back(nth(values_, output));
  for (const int parameter : node.parameters) step.parameters.push_back(nth(parameters_, parameter));
  for (const auto& auxiliary : node.signature.auxiliary)
    step.auxiliary.push_back(
        allocate({auxiliary.per_sample ? auxiliary.shape.batched(1) : auxiliary.shape, auxiliary.dtype}));
  step.kernel = ops::make_kernel(device::DeviceKind::cpu, node.op, inputs,
                                 {.batch = 1,
                                  .training = false,
                                  .intra_op_threads = threads,
                                  .op_number = static_cast<uint32_t>(number)});
  step.kernel->prepare(*device_);
  workspace_bytes_ = std::max(workspace_bytes_, step.kernel->workspace_bytes(ops::KernelPhase::forward));
  if (!node.signature.alias) steps_.push_back(std::move(step));
}

Tensor Evaluator::parameter(int id) const { return nth(parameters_, id); }

Tensor Evaluator::input(std::string_view name) const {
  for (const int input : graph_.inputs)
    if (graph_.value(input).name == name) return nth(values_, input);
  throw ConfigError(fmt::format("the model has no input '{}'", name));
}

Tensor Evaluator::evaluate() {
  const ops::StepConstants constants;
  for (const Step& step : steps_) {
    ops::KernelArguments arguments;
    arguments.inputs = step.inputs;
    arguments.outputs = step.outputs;
    arguments.parameters = step.parameters;
    arguments.auxiliary = step.auxiliary;
    arguments.workspace = workspace_.data();
    arguments.constants = &constants;
    step.kernel->forward(arguments, *stream_);
  }
  stream_->synchronize();
  return nth(values_, graph_.node(graph_.loss).inputs[0]);
}

}  // namespace lockstep::infer
