// What GPU kernels must do besides op_suite_test.cpp, which runs on the GPU in the same program.

#include <gtest/gtest.h>

#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

class NeedsGpu : public ::testing::Environment {
  void SetUp() override {
    const device::GpuProbe probe = device::probe_gpus();
    if (probe.devices.empty()) GTEST_SKIP() << probe.problem << ": ONLY_SKIPPED_TESTS";
  }
};
[[maybe_unused]] const ::testing::Environment* const kNeedsGpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu);

class GpuSuite : public ::testing::TestWithParam<OpCase> {};

TEST_P(GpuSuite, AgreesWithTheCpuKernel) {
  const OpCase& c = GetParam();
  auto gpu = make_harness(c, device::DeviceKind::cuda), cpu = make_harness(c, device::DeviceKind::cpu);
  const auto compare = [&](const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                           double tolerance, const std::string& what) {
    for (size_t i = 0; i < expected.size(); ++i)
      if (expected[i].data != nullptr)
        expect_near(values_of(actual[i]), values_of(expected[i]), tolerance, what + std::to_string(i));
  };
  gpu->forward();
  cpu->forward();
  compare(gpu->outputs, cpu->outputs, c.tolerance, "output ");
  if (cpu->signature().is_loss)
    for (int metric = 0; metric <= ops::kCorrect; ++metric)
      expect_near({gpu->metrics[metric]}, {cpu->metrics[metric]}, 1e-5, "metric " + std::to_string(metric));
  if (!c.options.training) return;
  gpu->backward();
  cpu->backward();
  compare(gpu->input_gradients, cpu->input_gradients, 2 * c.tolerance, "gradient of input ");
  compare(gpu->parameter_gradients, cpu->parameter_gradients, 2 * c.tolerance, "gradient of parameter ");
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuSuite, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Bfloat16, GpuSuite, ::testing::ValuesIn(narrow_cases(DType::bfloat16, 2e-2)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Float16, GpuSuite, ::testing::ValuesIn(narrow_cases(DType::float16, 3e-3)),
                         [](const auto& info) { return info.param.name; });

bool has_products(const OpCase& c) {
  return std::holds_alternative<Linear>(c.op) || std::holds_alternative<Conv2d>(c.op) ||
         std::holds_alternative<Lstm>(c.op);
}

/// Those whose float32 factors may be rounded to TF32. Its fraction has 10 bits, so that each of a product's
/// two factors is off by 2^-10 of itself at most, where it is cut off rather than rounded. Of sums of such
/// products we demand the same.
std::vector<OpCase> tf32_cases() {
  std::vector<OpCase> cases = all_cases();
  std::erase_if(cases, [](const OpCase& c) { return !has_products(c); });
  for (OpCase& c : cases) {
    c.options.tf32 = true;
    c.tolerance = 0x1p-9;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Tf32, GpuSuite, ::testing::ValuesIn(tf32_cases()),
                         [](const auto& info) { return info.param.name; });

/// The tests above would pass where the option were ignored, as a library may.
TEST(GpuTf32, ChangesTheBitsOfOpsWithProductsAndOfNoOthers) {
  const bool always_rounds = device::make_cuda_device(0)->description() == "emulated GPU";
  for (const OpCase& c : all_cases()) {
    if (!c.options.training) continue;
    OpCase rounded = c;
    rounded.options.tf32 = true;
    const auto plain = results_of(*make_harness(c, device::DeviceKind::cuda)),
               result = results_of(*make_harness(rounded, device::DeviceKind::cuda));
    if (!has_products(c)) {
      EXPECT_EQ(result, plain) << c.name;
    } else if (always_rounds) {
      EXPECT_NE(result, plain) << c.name;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
