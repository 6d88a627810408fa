#include "ops/replica_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/op_cases.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

/// Several virtual replicas at once, and each by itself.
class Replicas : public ::testing::TestWithParam<OpCase> {
 protected:
  /// Of one of them.
  static OpCase case_of_one() {
    OpCase c = GetParam();
    if (tested_device() == device::DeviceKind::cuda) c.batch = ops::kReplicaSamplesOnGpu;
    return c;
  }
  static std::vector<int> counts() {
    return tested_device() == device::DeviceKind::cuda ? std::vector{3} : std::vector{2, 3, 7};
  }
  std::unique_ptr<OpHarness> harness_of(int replicas) const {
    OpCase c = case_of_one();
    c.batch *= replicas;
    c.options.virtual_replicas = replicas;
    return make_harness(c);
  }
  /// That replica of what `all` computes.
  std::unique_ptr<OpHarness> one_of(const OpHarness& all, int replica) const {
    const OpCase c = case_of_one();
    auto one = make_harness(c);
    one->first_sample = all.first_sample + replica * c.batch;
    one->constants = all.constants;
    for (size_t i = 0; i < all.inputs.size(); ++i)
      fill(one->inputs[i], part(all.inputs[i], one->inputs[i], replica));
    for (size_t i = 0; i < all.parameters.size(); ++i) fill(one->parameters[i], values_of(all.parameters[i]));
    for (size_t i = 0; i < all.output_gradients.size(); ++i)
      fill(one->output_gradients[i], part(all.output_gradients[i], one->output_gradients[i], replica));
    return one;
  }
  static std::vector<double> part(const Tensor& all, const Tensor& one, int replica) {
    const std::vector<double> values = values_of(all);
    const auto begin = values.begin() + replica * one.count();
    return {begin, begin + one.count()};
  }
};

TEST_P(Replicas, AtOnceHaveTheBitsOfEachByItself) {
  if (!GetParam().options.training) return;
  for (const int replicas : counts()) {
    auto all = harness_of(replicas);
    std::vector<std::unique_ptr<OpHarness>> each;
    for (int replica = 0; replica < replicas; ++replica) each.push_back(one_of(*all, replica));
    all->forward();
    for (auto& one : each) one->forward();
    for (int replica = 0; replica < replicas; ++replica) {
      const OpHarness& one = *each[static_cast<size_t>(replica)];
      for (size_t i = 0; i < one.outputs.size(); ++i)
        EXPECT_EQ(part(all->outputs[i], one.outputs[i], replica), values_of(one.outputs[i]))
            << "output " << i;
      if (all->signature().is_loss) {
        const double* metrics = all->metrics + replica * ops::kMetricCount;
        EXPECT_TRUE(std::equal(metrics, metrics + ops::kCorrect + 1, one.metrics)) << "replica " << replica;
      }
    }
    all->backward();
    for (auto& one : each) one->backward();
    for (size_t i = 0; i < all->input_gradients.size(); ++i)
      for (int replica = 0; replica < replicas; ++replica) {
        const Tensor& own = each[static_cast<size_t>(replica)]->input_gradients[i];
        if (own.data == nullptr) continue;
        EXPECT_EQ(part(all->input_gradients[i], own, replica), values_of(own)) << "input " << i;
      }
    for (size_t i = 0; i < all->parameter_gradients.size(); ++i) {
      std::vector<std::vector<double>> gradients;
      for (auto& one : each) gradients.push_back(values_of(one->parameter_gradients[i]));
      std::vector<double> expected;
      for (size_t element = 0; element < gradients[0].size(); ++element)
        expected.push_back(tree_sum(0, replicas, [&](int replica) {
          return static_cast<float>(gradients[static_cast<size_t>(replica)][element]);
        }));
      EXPECT_EQ(values_of(all->parameter_gradients[i]), expected) << all->signature().parameters[i].name;
    }
  }
}

TEST_P(Replicas, EvaluateAtOnceWithTheBitsOfEachByItself) {
  OpCase c = case_of_one();
  c.options.training = false;
  c.batch *= 3;
  c.options.virtual_replicas = 3;
  auto all = make_harness(c);
  std::vector<std::unique_ptr<OpHarness>> each;
  OpCase single = case_of_one();
  single.options.training = false;
  for (int replica = 0; replica < 3; ++replica) {
    auto one = make_harness(single);
    one->first_sample = all->first_sample + replica * single.batch;
    one->constants = all->constants;
    for (size_t i = 0; i < all->inputs.size(); ++i)
      fill(one->inputs[i], part(all->inputs[i], one->inputs[i], replica));
    for (size_t i = 0; i < all->parameters.size(); ++i)
      fill(one->parameters[i], values_of(all->parameters[i]));
    each.push_back(std::move(one));
  }
  all->forward();
  for (int replica = 0; replica < 3; ++replica) {
    OpHarness& one = *each[static_cast<size_t>(replica)];
    one.forward();
    for (size_t i = 0; i < one.outputs.size(); ++i)
      EXPECT_EQ(part(all->outputs[i], one.outputs[i], replica), values_of(one.outputs[i])) << "output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Replicas, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
