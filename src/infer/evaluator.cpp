#include "infer/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::infer {
namespace {

/// The first `rows` positions of samples.
TensorSpec rows_of(const TensorSpec& of_sample, int64_t rows) {
  std::vector<int64_t> dims = of_sample.shape.dims();
  dims.at(0) = rows;
  return {Shape(std::move(dims)), of_sample.dtype};
}

/// From so many operations on, an op is shared among threads: meeting them takes longer than less work does.
constexpr double kWorthThreads = 1e6;

/// The tensor `rows` positions further on, of which it has `count`.
Tensor moved(const Tensor& tensor, int64_t rows, int64_t count) {
  return {tensor.as<std::byte>() + tensor.size_bytes() / count * rows, tensor.shape, tensor.dtype};
}

}  // namespace

Evaluator::Evaluator(model::Graph graph, int threads, int64_t batch)
    : graph_(std::move(graph)),
      threads_(threads),
      batch_(batch),
      device_(device::make_cpu_device()),
      stream_(device_->create_stream("infer")) {
  require(graph_.compute == DType::float32, "models are evaluated in float32");
  for (const auto& parameter : graph_.parameters) parameters_.push_back(allocate({parameter.spec.shape}));
  place_values();
}

Tensor Evaluator::allocate(const TensorSpec& spec) {
  const Tensor tensor{nullptr, spec.shape, spec.dtype};
  buffers_.push_back(device_->allocate(tensor.size_bytes()));
  return {buffers_.back().data(), spec.shape, spec.dtype};
}

/// Views have the memory of what they show. Values are kept until the next evaluation: a batch is small
/// beside the parameters, and the next position of a text needs those before it.
void Evaluator::place_values() {
  values_.resize(graph_.values.size());
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    const model::Value& value = graph_.value(v);
    const TensorSpec of_batch{value.spec.shape.batched(batch_), value.spec.dtype};
    if (value.storage == v)
      nth(values_, v) = allocate(of_batch);
    else
      nth(values_, v) = {nth(values_, value.storage).data, of_batch.shape, of_batch.dtype};
  }
}

Evaluator::Step Evaluator::make_step(int number, int64_t rows) {
  const model::Node& node = graph_.node(number);
  Step step{.in_rows = rows > 0 && node.signature.positions == ops::PositionUse::own};
  const auto spec_of = [&](int value) {
    return step.in_rows ? rows_of(graph_.logical_spec(value), rows) : graph_.logical_spec(value);
  };
  const auto tensor_of = [&](int value) {
    return Tensor{nth(values_, value).data, spec_of(value).shape.batched(batch_), spec_of(value).dtype};
  };
  std::vector<TensorSpec> inputs;
  for (const int input : node.inputs) {
    inputs.push_back(spec_of(input));
    step.inputs.push_back(tensor_of(input));
  }
  for (const int output : node.outputs) step.outputs.push_back(tensor_of(output));
  for (const int parameter : node.parameters) step.parameters.push_back(nth(parameters_, parameter));
  step.auxiliary = auxiliary_of(number, inputs, step.in_rows);
  // Of the rows that are computed.
  const double share =
      rows == 0 || step.in_rows ? 1 : static_cast<double>(rows) / static_cast<double>(inputs[0].shape[0]);
  const bool shared = share * ops::cost(node.op, inputs, batch_).forward_flops >= kWorthThreads;
  step.kernel = ops::make_kernel(device::DeviceKind::cpu, node.op, inputs,
                                 {.batch = batch_,
                                  .training = false,
                                  .intra_op_threads = shared ? threads_ : 1,
                                  .op_number = static_cast<uint32_t>(number),
                                  .rows = step.in_rows ? 0 : rows});
  step.kernel->prepare(*device_);
  return step;
}

/// Those of whole samples are the same however many rows a step computes: what one leaves there
/// (PositionUse:: previous), another one reads.
std::vector<Tensor> Evaluator::auxiliary_of(int number, std::span<const TensorSpec> inputs, bool in_rows) {
  if (const auto found = states_.find(number); !in_rows && found != states_.end()) return found->second;
  std::vector<Tensor> made;
  for (const auto& auxiliary : ops::infer(graph_.node(number).op, inputs).auxiliary)
    made.push_back(allocate(
        {auxiliary.per_sample ? auxiliary.shape.batched(batch_) : auxiliary.shape, auxiliary.dtype}));
  if (!in_rows) states_.emplace(number, made);
  return made;
}

const std::vector<Evaluator::Step>& Evaluator::steps_of(int64_t rows) {
  const auto [found, is_new] = steps_.try_emplace(rows);
  if (!is_new) return found->second;
  int64_t workspace_bytes = workspace_bytes_;
  for (int n = 0; n < static_cast<int>(graph_.nodes.size()); ++n) {
    if (n == graph_.loss || graph_.node(n).signature.alias) continue;
    found->second.push_back(make_step(n, rows));
    workspace_bytes =
        std::max(workspace_bytes, found->second.back().kernel->workspace_bytes(ops::KernelPhase::forward));
  }
  if (workspace_bytes > workspace_bytes_) workspace_ = device_->allocate(workspace_bytes);
  workspace_bytes_ = workspace_bytes;
  return found->second;
}

Tensor Evaluator::parameter(int id) {
  ++writings_;
  return nth(parameters_, id);
}

Tensor Evaluator::input(std::string_view name) const {
  for (const int input : graph_.inputs)
    if (graph_.value(input).name == name) return nth(values_, input);
  throw ConfigError(fmt::format("the model has no input '{}'", name));
}

Tensor Evaluator::output() const { return nth(values_, graph_.node(graph_.loss).inputs[0]); }

void Evaluator::run(const std::vector<Step>& steps, int64_t first) {
  // Kernels may keep what they make of parameters while the step is the same.
  const ops::StepConstants constants{.step = writings_};
  std::vector<Tensor> inputs, outputs;
  for (const Step& step : steps) {
    inputs = step.inputs;
    outputs = step.outputs;
    if (step.in_rows)
      for (auto* tensors : {&inputs, &outputs})
        for (Tensor& tensor : *tensors) tensor = moved(tensor, first, tensor.shape[1]);
    ops::KernelArguments arguments;
    arguments.inputs = inputs;
    arguments.outputs = outputs;
    arguments.parameters = step.parameters;
    arguments.auxiliary = step.auxiliary;
    arguments.workspace = workspace_.data();
    arguments.constants = &constants;
    arguments.first_row = first;
    step.kernel->forward(arguments, *stream_);
  }
  stream_->synchronize();
}

Tensor Evaluator::evaluate() {
  run(steps_of(0), 0);
  return output();
}

void Evaluator::evaluate_rows(int64_t first, int64_t rows) {
  ensure(batch_ == 1 && rows > 0, "single positions are those of one sample");
  run(steps_of(rows), first);
}

}  // namespace lockstep::infer
