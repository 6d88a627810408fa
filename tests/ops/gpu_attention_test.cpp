// What is particular to attention on GPUs: tiles, limits and memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

TEST(GpuAttention, LengthsAroundTilesAgreeWithTheCpu) {
  const Attention op{.heads = 2};
  for (const auto dtype : {DType::bfloat16, DType::float32})
    for (const int64_t positions : {15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193}) {
      const KernelOptions options{.batch = 1, .compute = dtype};
      const std::vector<TensorSpec> inputs{{{positions, 3 * 2 * 32}}};
      OpHarness gpu(op, inputs, options, DeviceKind::cuda), cpu(op, inputs, options, DeviceKind::cpu);
      const auto values = random_values(positions * 192, 3, -2, 2);
      for (OpHarness* harness : {&gpu, &cpu}) {
        fill(harness->inputs[0], values);
        harness->forward();
      }
      const std::string what = fmt::format("{}, {} positions: ", name_of(dtype), positions);
      // Scores are sums in float32 of exact products, so that the sums of exponentials agree closely in every
      // type.
      expect_near(values_of(gpu.auxiliary[0]), values_of(cpu.auxiliary[0]), 1e-5, what + "log-sum-exp");
      expect_near(values_of(gpu.outputs[0]), values_of(cpu.outputs[0]), dtype == DType::float32 ? 1e-5 : 1e-2,
                  what + "output");
    }
}

TEST(GpuAttention, KeepsOneNumberForEachRowOfBackward) {
  const auto kernel =
      make_kernel(DeviceKind::cuda, Attention{.heads = 12}, std::vector<TensorSpec>{{{1024, 3 * 768}}},
                  {.batch = 4, .compute = DType::bfloat16});
  EXPECT_EQ(kernel->workspace_bytes(KernelPhase::forward), 0);
  EXPECT_EQ(kernel->workspace_bytes(KernelPhase::backward_input), 4 * 12 * 1024 * 4);
  EXPECT_EQ(kernel->workspace_bytes(KernelPhase::backward_weight), 0);
}

TEST(GpuAttention, RefusesWhatItsKernelsDoNotTake) {
  const auto make = [](Shape shape) {
    return make_kernel(DeviceKind::cuda, Attention{.heads = 1}, std::vector<TensorSpec>{{shape}},
                       {.batch = 1});
  };
  EXPECT_NO_THROW(make({4, 3 * 256}));
  EXPECT_THROW(make({4, 3 * 257}), ConfigError);
  EXPECT_NO_THROW(make({16 * 65535, 3}));
  EXPECT_THROW(make({16 * 65535 + 1, 3}), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
