#include "plan/gpu_memory.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

TEST(GpuMemory, IsKnownByNameInAnyCase) {
  EXPECT_EQ(memory_of_gpu("H100"), 80'000'000'000);
  EXPECT_EQ(memory_of_gpu("a100-40gb"), 40'000'000'000);
  EXPECT_FALSE(memory_of_gpu("A100")) << "there are two kinds";
  EXPECT_FALSE(memory_of_gpu(""));
  for (const std::string& name : names_of_gpus()) EXPECT_TRUE(memory_of_gpu(name)) << name;
}

TEST(GpuMemory, IsNotForPlansAlone) {
  EXPECT_EQ(bytes_for_plans(100ll << 30), (98ll << 30) - (512ll << 20));
  EXPECT_EQ(bytes_for_plans(1), 0);
}

}  // namespace
}  // namespace lockstep::plan
