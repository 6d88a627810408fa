// An op says which positions a position depends on (ops::PositionUse): here it computes them one by one.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

using ops::PositionUse;

/// Memory of one sample.
struct Memory {
  explicit Memory(const TensorSpec& spec, const void* from = nullptr)
      : numbers(static_cast<size_t>(spec.shape.count()), std::numeric_limits<float>::quiet_NaN()),
        tensor{numbers.data(), spec.shape.batched(1), spec.dtype} {
    if (from != nullptr) std::memcpy(numbers.data(), from, 4 * numbers.size());
  }
  Memory(Memory&&) = default;
  int64_t row() const { return tensor.count() / tensor.shape[1]; }  ///< elements
  Tensor at(int64_t position) const {
    std::vector<int64_t> dims = tensor.shape.dims();
    dims[1] = 1;
    return {numbers.data() + position * row(), Shape(std::move(dims)), tensor.dtype};
  }
  mutable std::vector<float> numbers;  // int32 has as many bytes
  Tensor tensor;
};

class PositionSuite : public ::testing::TestWithParam<OpCase> {};

std::vector<OpCase> cases() {
  std::vector<OpCase> found;
  for (OpCase& c : all_cases()) {
    c.options.training = false;
    c.options.virtual_replicas = 1;
    if (const auto signature = ops::infer(c.op, c.inputs);
        signature.positions != PositionUse::any && !signature.alias && c.inputs[0].shape.rank() > 0)
      found.push_back(std::move(c));
  }
  return found;
}

/// All positions of the first sample, some at a time, in memory where nothing is a number before.
std::vector<float> computed_in_order(const OpCase& c, const OpHarness& harness, int64_t at_once) {
  std::vector<Memory> inputs_memory, beside_memory;
  std::vector<Tensor> inputs, auxiliary;
  for (size_t i = 0; i < c.inputs.size(); ++i)
    inputs.push_back(inputs_memory.emplace_back(c.inputs[i], harness.inputs[i].data).tensor);
  for (const auto& spec : harness.signature().auxiliary)
    auxiliary.push_back(beside_memory.emplace_back(TensorSpec{spec.shape, spec.dtype}).tensor);
  const Memory result(harness.signature().outputs.at(0));
  const int64_t positions = result.tensor.shape[1];
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("test");
  ops::KernelOptions options = c.options;
  options.batch = 1;
  for (int64_t first = 0; first < positions; first += options.rows) {
    options.rows = std::min(at_once, positions - first);
    const auto kernel = ops::make_kernel(device::DeviceKind::cpu, c.op, c.inputs, options);
    kernel->prepare(*device);
    const device::Buffer workspace = device->allocate(kernel->workspace_bytes(ops::KernelPhase::forward));
    ops::KernelArguments arguments;
    arguments.inputs = inputs;
    arguments.outputs = {&result.tensor, 1};
    arguments.parameters = harness.parameters;
    arguments.auxiliary = auxiliary;
    arguments.workspace = workspace.data();
    arguments.constants = &harness.constants;
    arguments.first_row = first;
    kernel->forward(arguments, *stream);
    stream->synchronize();
  }
  return result.numbers;
}

/// Position `position` of the first sample alone, in memory where nothing else is a number but, for
/// PositionUse::earlier, what came before.
std::vector<float> computed_alone(const OpCase& c, const OpHarness& harness, int64_t position) {
  const ops::OpSignature& signature = harness.signature();
  const bool own = signature.positions == PositionUse::own;
  std::vector<TensorSpec> specs;
  std::vector<Memory> memory;
  for (const TensorSpec& spec : c.inputs) {
    specs.push_back(spec);
    if (!own) continue;
    std::vector<int64_t> dims = spec.shape.dims();
    dims[0] = 1;
    specs.back().shape = Shape(std::move(dims));
  }
  std::vector<Tensor> inputs, outputs, auxiliary;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    memory.emplace_back(c.inputs[i], harness.inputs[i].data);
    const Memory& all = memory.back();
    const int64_t first = signature.positions == PositionUse::earlier ? 0 : position;
    for (int64_t n = 0; n < all.tensor.count(); ++n)
      if (n < first * all.row() || n >= (position + 1) * all.row())
        all.numbers[static_cast<size_t>(n)] = std::numeric_limits<float>::quiet_NaN();
    inputs.push_back(own ? all.at(position) : all.tensor);
  }
  const Memory result(signature.outputs.at(0));
  outputs.push_back(own ? result.at(position) : result.tensor);
  std::vector<std::vector<float>> beside;
  for (const auto& spec : ops::infer(c.op, specs).auxiliary) {
    beside.emplace_back(static_cast<size_t>(spec.shape.count()));
    auxiliary.push_back({beside.back().data(), spec.shape.batched(1), spec.dtype});
  }
  ops::KernelOptions options = c.options;
  options.batch = 1;
  options.rows = own ? 0 : 1;
  const auto kernel = ops::make_kernel(device::DeviceKind::cpu, c.op, specs, options);
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("test");
  kernel->prepare(*device);
  const device::Buffer workspace = device->allocate(kernel->workspace_bytes(ops::KernelPhase::forward));
  ops::KernelArguments arguments;
  arguments.inputs = inputs;
  arguments.outputs = outputs;
  arguments.parameters = harness.parameters;
  arguments.auxiliary = auxiliary;
  arguments.workspace = workspace.data();
  arguments.constants = &harness.constants;
  arguments.first_row = position;
  kernel->forward(arguments, *stream);
  stream->synchronize();
  const auto* row = static_cast<const float*>(result.at(position).data);
  return {row, row + result.row()};
}

TEST_P(PositionSuite, ComputesAPositionAloneToTheSameBits) {
  const OpCase& c = GetParam();
  const auto harness = make_harness(c);
  harness->forward();
  const Shape& shape = harness->signature().outputs.at(0).shape;
  for (const TensorSpec& input : c.inputs) ASSERT_EQ(input.shape[0], shape[0]);
  const int64_t row = shape.count() / shape[0];
  if (harness->signature().positions == PositionUse::previous) {
    const float* all = harness->outputs.at(0).as<const float>();
    for (const int64_t at_once : {int64_t{1}, int64_t{2}, int64_t{3}, shape[0]})
      ASSERT_EQ(computed_in_order(c, *harness, at_once), std::vector<float>(all, all + shape.count()))
          << at_once;
    return;
  }
  const int64_t last = shape[0] - 1;  // of thousands, some; blocks end at 64
  for (const int64_t position : std::set<int64_t>{0, last / 3, std::min<int64_t>(63, last),
                                                  std::min<int64_t>(64, last), last / 2, last}) {
    const std::vector<float> alone = computed_alone(c, *harness, position);
    const float* all = harness->outputs.at(0).as<const float>() + position * row;
    ASSERT_EQ(alone, std::vector<float>(all, all + row)) << "position " << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, PositionSuite, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
