// Kernels on streams that run later, on threads of their own.

#include <gtest/gtest.h>

#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

class AsyncSuite : public ::testing::TestWithParam<OpCase> {};

TEST_P(AsyncSuite, KernelsKeepNoArguments) {
  if (!GetParam().options.training) return;
  EXPECT_EQ(results_of(*make_harness(GetParam(), device::DeviceKind::async_cpu)),
            results_of(*make_harness(GetParam(), device::DeviceKind::cpu)));
}

INSTANTIATE_TEST_SUITE_P(Ops, AsyncSuite, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Bfloat16, AsyncSuite, ::testing::ValuesIn(narrow_cases(DType::bfloat16, 2e-2)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Float16, AsyncSuite, ::testing::ValuesIn(narrow_cases(DType::float16, 3e-3)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
