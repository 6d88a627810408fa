// What every op of the table must do, whatever it computes. The cases come from op_cases.h.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(OpTable, EveryOpHasCases) {
  for (const OpCasesRow& row : op_cases())
    if (row.op != Custom::kName || tested_device() == device::DeviceKind::cpu) {
      EXPECT_FALSE(row.cases().empty()) << row.op;
    }
}

TEST(OpTable, CasesAreOfTheOpTheyStandUnder) {
  for (const OpCasesRow& row : op_cases())
    for (const OpCase& c : row.cases()) EXPECT_EQ(name_of(c.op), row.op) << c.name;
}

TEST(OpTable, NamesDiffer) {
  std::set<std::string_view> names;
  for (const ops::OpTableRow& row : ops::op_table()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

class OpSuite : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpSuite, ForwardAgreesWithTheReference) {
  const OpCase& c = GetParam();
  auto harness = make_harness(c);
  std::vector<Array> inputs, parameters;
  for (const Tensor& tensor : harness->inputs) inputs.push_back(array_of(tensor));
  for (const Tensor& tensor : harness->parameters) parameters.push_back(array_of(tensor));
  harness->forward();
  const std::vector<Array> expected = c.reference(inputs, parameters);
  if (harness->signature().is_loss) {
    expect_near({harness->metrics[ops::kLossSum]}, expected.at(0).values, c.tolerance, "loss sum");
    return;
  }
  ASSERT_EQ(harness->outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(harness->outputs[i].shape, expected[i].shape);
    expect_near(values_of(harness->outputs[i]), expected[i].values, c.tolerance,
                "output " + std::to_string(i));
  }
}

TEST_P(OpSuite, GradientsAgreeWithFiniteDifferences) {
  auto harness = make_harness(GetParam());
  if (!GetParam().options.training) return;
  const std::vector<Difference> differences = finite_differences(GetParam(), *harness);
  harness->forward();
  harness->backward();
  for (const Difference& difference : differences) {
    const std::vector<double> gradient = values_of(difference.gradient);
    std::vector<double> picked;
    for (const int64_t element : difference.elements)
      picked.push_back(gradient[static_cast<size_t>(element)]);
    // Gradients sum over as many terms as there are readers, so their rounding may exceed that of one output.
    expect_near(picked, difference.values, 2 * GetParam().tolerance, "gradient of " + difference.tensor);
    for (const double value : gradient)
      ASSERT_TRUE(std::isfinite(value)) << "gradient of " << difference.tensor;
  }
}

TEST_P(OpSuite, ParameterGradientsAccumulateWhereAsked) {
  if (!GetParam().options.training) return;
  auto harness = make_harness(GetParam());
  harness->forward();
  auto kept = values_of_all(harness->output_gradients);
  harness->backward();
  const auto once = values_of_all(harness->parameter_gradients);
  const auto input_gradients = values_of_all(harness->input_gradients);
  for (size_t i = 0; i < kept.size(); ++i) fill(harness->output_gradients[i], kept[i]);
  harness->backward(true);
  const auto twice = values_of_all(harness->parameter_gradients);
  for (size_t i = 0; i < once.size(); ++i) {
    std::vector<double> expected = once[i];
    for (double& value : expected) value *= 2;
    expect_near(twice[i], expected, GetParam().tolerance, harness->signature().parameters[i].name);
  }
  EXPECT_EQ(values_of_all(harness->input_gradients), input_gradients)
      << "gradients of inputs never accumulate";
}

TEST_P(OpSuite, MetricsAccumulateWhereAsked) {
  auto harness = make_harness(GetParam());
  if (!harness->signature().is_loss) return;
  harness->forward();
  const std::vector<double> once(harness->metrics, harness->metrics + ops::kCorrect + 1);
  harness->forward(true);
  for (size_t i = 0; i < once.size(); ++i)
    EXPECT_NEAR(harness->metrics[i], 2 * once[i], 1e-12 * once[i]) << "metric " << i;
}

TEST_P(OpSuite, BackwardReadsOnlyWhatTheSignatureSays) {
  if (!GetParam().options.training) return;
  auto harness = make_harness(GetParam());
  const auto expected = results_of(*make_harness(GetParam()));
  const ops::OpSignature& signature = harness->signature();
  harness->forward();
  auto actual = values_of_all(harness->outputs);
  if (signature.is_loss) actual.emplace_back(harness->metrics, harness->metrics + ops::kCorrect + 1);
  // An alias op's output is its input's memory: both names must be unneeded before it may be lost.
  for (size_t i = 0; i < harness->inputs.size(); ++i)
    if (!signature.backward_needs_input[i] && !(signature.alias && signature.backward_needs_output))
      poison(harness->inputs[i]);
  if (!signature.backward_needs_output && !signature.alias)
    for (const Tensor& output : harness->outputs) poison(output);
  harness->backward();
  for (auto* tensors : {&harness->input_gradients, &harness->parameter_gradients})
    for (auto& values : values_of_all(*tensors)) actual.push_back(std::move(values));
  EXPECT_EQ(actual, expected);
}

TEST_P(OpSuite, UnwantedInputGradientsChangeNothingElse) {
  if (!GetParam().options.training) return;
  auto complete = make_harness(GetParam());
  results_of(*complete);
  for (size_t unwanted = 0; unwanted < complete->inputs.size(); ++unwanted) {
    auto harness = make_harness(GetParam());
    harness->input_gradients[unwanted].data = nullptr;
    results_of(*harness);
    EXPECT_EQ(values_of_all(harness->parameter_gradients), values_of_all(complete->parameter_gradients));
    for (size_t i = 0; i < harness->inputs.size(); ++i)
      if (harness->input_gradients[i].data != nullptr) {
        EXPECT_EQ(values_of(harness->input_gradients[i]), values_of(complete->input_gradients[i]))
            << "input " << i;
      }
  }
}

TEST_P(OpSuite, RepeatsItsBitsOnTheSameKernel) {
  if (!GetParam().options.training) return;
  auto harness = make_harness(GetParam());
  const auto gradients = values_of_all(harness->output_gradients);
  const auto first = results_of(*harness);
  for (size_t i = 0; i < gradients.size(); ++i) fill(harness->output_gradients[i], gradients[i]);
  EXPECT_EQ(results_of(*harness), first);
}

TEST_P(OpSuite, CostIsFiniteAndGrowsWithTheBatch) {
  const OpCase& c = GetParam();
  const ops::OpCost one = ops::cost(c.op, c.inputs, 1), four = ops::cost(c.op, c.inputs, 4);
  const std::pair<double, double> figures[] = {{one.forward_flops, four.forward_flops},
                                               {one.backward_input_flops, four.backward_input_flops},
                                               {one.backward_weight_flops, four.backward_weight_flops},
                                               {one.forward_bytes, four.forward_bytes},
                                               {one.backward_input_bytes, four.backward_input_bytes},
                                               {one.backward_weight_bytes, four.backward_weight_bytes}};
  for (const auto& [small, large] : figures) {
    EXPECT_TRUE(std::isfinite(small) && small >= 0);
    EXPECT_GE(large, small);
    if (small > 0) {
      EXPECT_GT(large, small);
    }
  }
  if (!ops::infer(c.op, c.inputs).alias) {
    EXPECT_GT(one.forward_bytes, 0);
  }
}

TEST_P(OpSuite, SignatureListsOneFlagPerInput) {
  const OpCase& c = GetParam();
  const ops::OpSignature signature = ops::infer(c.op, c.inputs);
  ASSERT_EQ(signature.differentiable.size(), c.inputs.size());
  ASSERT_EQ(signature.backward_needs_input.size(), c.inputs.size());
  for (size_t i = 0; i < c.inputs.size(); ++i)
    EXPECT_FALSE(signature.differentiable[i] && c.inputs[i].dtype == DType::int32);
  EXPECT_EQ(signature.is_loss, signature.outputs.empty());
  EXPECT_EQ(signature.backward == ops::BackwardForm::none, signature.parameters.empty());
}

INSTANTIATE_TEST_SUITE_P(Ops, OpSuite, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Bfloat16, OpSuite, ::testing::ValuesIn(narrow_cases(DType::bfloat16, 2e-2)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Float16, OpSuite, ::testing::ValuesIn(narrow_cases(DType::float16, 3e-3)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
