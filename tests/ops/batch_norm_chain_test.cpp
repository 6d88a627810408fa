// Batch norms that do the work of the sum and the ReLU behind them, and ReLUs that do that of the fork,
// against the kernels apart.

#include <gtest/gtest.h>

#include <bit>

#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

struct ChainCase {
  Shape shape;
  int64_t batch;
  bool adds;
  int threads = 1;
  int replicas = 1;
  bool training = true;

  ops::KernelOptions options(ops::FusedNeighbors fused = {}) const {
    return {.batch = batch,
            .virtual_replicas = replicas,
            .training = training,
            .intra_op_threads = threads,
            .fused = fused};
  }
};

/// As integers, which tell zeros of either sign apart.
std::vector<uint64_t> signed_values_of(const std::vector<double>& values) {
  std::vector<uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<uint64_t>(value));
  return bits;
}

std::vector<std::vector<uint64_t>> signed_values_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<uint64_t>> bits;
  for (const auto& values : values_of_all(tensors)) bits.push_back(signed_values_of(values));
  return bits;
}

std::vector<uint64_t> signed_values_of(const Tensor& tensor) { return signed_values_of(values_of(tensor)); }

/// batch norm (-> sum with `other`) -> ReLU -> fork, by one kernel each, or by as few as can.
struct NormChain {
  NormChain(const ChainCase& c, bool fused)
      : c_(c),
        norm(BatchNorm{}, {{c.shape}}, c.options({.add_behind = fused && c.adds, .relu_behind = fused})),
        add(Add{}, {{c.shape}, {c.shape}}, c.options()),
        relu(Relu{}, {{c.shape}}, c.options({.fork_behind = fused && c.adds})),
        fork(Fork{}, {{c.shape}}, c.options()) {
    const int64_t count = c.shape.count() * c.batch;
    fill(norm.inputs[0], random_values(count, 1, -2, 3));
    for (size_t p = 0; p < norm.parameters.size(); ++p)
      fill(norm.parameters[p],
           random_values(norm.parameters[p].count(), 2 + static_cast<uint32_t>(p), 0.5, 1));
    // Both signs, and one channel whose output is exactly 0.
    fill(norm.parameters[1], random_values(norm.parameters[1].count(), 7));
    norm.parameters[0].as<float>()[0] = norm.parameters[1].as<float>()[0] = 0;
    if (c.shape.dims().back() > 1) {  // and one whose zeros have both signs
      norm.parameters[0].as<float>()[1] = 0;
      norm.parameters[1].as<float>()[1] = -0.0f;
    }
    fill(add.inputs[1], random_values(count, 8));
    for (const size_t reader : {0, 1})
      fill(fork.output_gradients[reader], random_values(count, 9 + static_cast<uint32_t>(reader)));
    if (!fused) return;
    if (c.adds) {
      norm.inputs.push_back(norm.make({c.shape.batched(c.batch)}));
      fill(norm.inputs[1], values_of(add.inputs[1]));
      relu.output_gradients.push_back(relu.make({c.shape.batched(c.batch)}));
    }
  }

  void run_apart() {
    norm.forward();
    if (c_.adds) {
      fill(add.inputs[0], values_of(norm.outputs[0]));
      add.forward();
    }
    fill(relu.inputs[0], values_of((c_.adds ? add : norm).outputs[0]));
    relu.forward();
    if (!c_.training) return;
    fork.backward();
    fill(relu.output_gradients[0], values_of(fork.input_gradients[0]));
    relu.backward();
    fill(norm.output_gradients[0], values_of(relu.input_gradients[0]));
    norm.backward();
  }

  void run_fused() {
    norm.forward();
    fill(relu.outputs[0], values_of(norm.outputs[0]));
    if (!c_.training) return;
    if (c_.adds) {
      for (const size_t reader : {0, 1})
        fill(relu.output_gradients[reader], values_of(fork.output_gradients[reader]));
      relu.backward();
      fill(norm.output_gradients[0], values_of(relu.input_gradients[0]));
    } else {
      fork.backward();
      fill(norm.output_gradients[0], values_of(fork.input_gradients[0]));
    }
    norm.backward();
  }

  ChainCase c_;
  OpHarness norm, add, relu, fork;
};

class BatchNormChain : public ::testing::TestWithParam<ChainCase> {};

TEST_P(BatchNormChain, HasTheBitsOfKernelsApart) {
  const ChainCase& c = GetParam();
  NormChain fused(c, true), apart(c, false);
  fused.run_fused();
  apart.run_apart();
  EXPECT_EQ(signed_values_of(fused.norm.outputs[0]), signed_values_of(apart.relu.outputs[0]));
  if (!c.training) return;
  EXPECT_EQ(signed_values_of(fused.norm.auxiliary), signed_values_of(apart.norm.auxiliary));
  if (c.adds) {
    EXPECT_EQ(signed_values_of(fused.relu.input_gradients[0]),
              signed_values_of(apart.relu.input_gradients[0]));
  }
  EXPECT_EQ(signed_values_of(fused.norm.input_gradients[0]), signed_values_of(apart.norm.input_gradients[0]));
  EXPECT_EQ(signed_values_of(fused.norm.parameter_gradients),
            signed_values_of(apart.norm.parameter_gradients));
}

TEST_P(BatchNormChain, MayEndWithTheSum) {
  const ChainCase& c = GetParam();
  if (!c.adds) return;
  NormChain apart(c, false);
  OpHarness norm(BatchNorm{}, {{c.shape}}, c.options({.add_behind = true}));
  fill(norm.inputs[0], values_of(apart.norm.inputs[0]));
  for (size_t p = 0; p < norm.parameters.size(); ++p)
    fill(norm.parameters[p], values_of(apart.norm.parameters[p]));
  norm.inputs.push_back(norm.make({c.shape.batched(c.batch)}));
  fill(norm.inputs[1], values_of(apart.add.inputs[1]));
  norm.forward();
  apart.run_apart();
  EXPECT_EQ(signed_values_of(norm.outputs[0]), signed_values_of(apart.add.outputs[0]));
  if (!c.training) return;
  EXPECT_EQ(signed_values_of(norm.auxiliary), signed_values_of(apart.norm.auxiliary));
  fill(norm.output_gradients[0], values_of(apart.norm.output_gradients[0]));
  norm.backward();
  EXPECT_EQ(signed_values_of(norm.input_gradients[0]), signed_values_of(apart.norm.input_gradients[0]));
  EXPECT_EQ(signed_values_of(norm.parameter_gradients), signed_values_of(apart.norm.parameter_gradients));
}

TEST_P(BatchNormChain, ComputesGradientsOfParametersAlone) {
  const ChainCase& c = GetParam();
  if (!c.training) return;
  NormChain whole(c, true), alone(c, true);
  alone.norm.input_gradients[0].data = nullptr;
  for (NormChain* chain : {&whole, &alone}) chain->run_fused();
  EXPECT_EQ(signed_values_of(alone.norm.parameter_gradients),
            signed_values_of(whole.norm.parameter_gradients));
}

std::vector<ChainCase> chain_cases() {
  std::vector<ChainCase> all;
  for (const bool adds : {false, true}) {
    // Channels of fewer lanes than a register, of several registers, with and without a rest; rows that are
    // no multiple of four, and of several blocks.
    for (const int64_t channels : {1, 3, 7, 16, 24, 64, 67, 131})
      all.push_back({.shape = {3, 5, channels}, .batch = 3, .adds = adds});
    all.push_back({.shape = {16, 16, 67}, .batch = 2, .adds = adds});
    all.push_back({.shape = {9, 9, 19}, .batch = 16, .adds = adds, .threads = 3});
    all.push_back({.shape = {5, 3, 33}, .batch = 8, .adds = adds, .replicas = 4});
    all.push_back({.shape = {5, 3, 33}, .batch = 2, .adds = adds, .training = false});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormChain, ::testing::ValuesIn(chain_cases()), [](const auto& param) {
  const ChainCase& c = param.param;
  std::string name;
  for (const int64_t size : c.shape.dims()) name += std::to_string(size) + "x";
  name += std::to_string(c.batch);
  if (c.adds) name += "_add";
  if (c.threads > 1) name += "_threads";
  if (c.replicas > 1) name += "_replicas";
  if (!c.training) name += "_evaluation";
  return name;
});

}  // namespace
}  // namespace lockstep::testing
