#include <gtest/gtest.h>

#include "plan/device_plan.h"
#include "plan/largest_batch.h"
#include "plan/memory_limit.h"
#include "plan/plan_testing.h"

// On GPUs, which compute several virtual replicas at once only if each has a multiple of 8 samples.

namespace lockstep::plan {
namespace {

constexpr int64_t kManySamples = int64_t{1} << 40;

TEST(LargestBatch, OfReplicasThatGpusJoinGoesByEightSamplesOfEach) {
  compile::CompileOptions options = gpt_options("dp=1", 64);
  options.virtual_replicas = 8;
  options.global_batch = 128;
  options.parallel.reduction = layout::Reduction::reproducible;
  const compile::CompileFacts facts{.world_size = 1, .device = device::DeviceKind::cuda};
  const compile::CompiledRun run(options, facts);
  ASSERT_EQ(run.division().leaves_at_once, 4);
  for (const int64_t percent : {90, 300, 450, 700}) {
    const int64_t limit = percent * fullest_rank(run).plan.total_bytes / 100;
    const LargestBatch found = largest_batch(options, facts, limit, kManySamples);
    ASSERT_TRUE(found.fit && found.next) << percent;
    EXPECT_EQ(found.fit->micro_batch % 32, 0) << percent;
    EXPECT_EQ(found.fit->global_batch, 2 * found.fit->micro_batch);
    EXPECT_LE(found.fit->bytes, limit);
    EXPECT_EQ(found.next->micro_batch, found.fit->micro_batch + 32);
    EXPECT_GT(found.next->bytes, limit);
    compile::CompileOptions next = options;
    next.micro_batch = found.next->micro_batch;
    next.global_batch = found.next->global_batch;
    EXPECT_NE(excess(compile::CompiledRun(next, facts), next, facts, limit), "") << percent;
    // A size between computes replicas one after the other: it is none of these batches.
    EXPECT_FALSE(fit_batch(options, facts, limit, found.fit->micro_batch / 4 - 1)) << percent;
  }
}

/// FAST has a leaf per worker, of any size.
TEST(LargestBatch, OnGpusWithoutReplicasIsExactToASample) {
  compile::CompileOptions options = gpt_options("dp=1", 64);
  options.global_batch = 128;
  options.parallel.reduction = layout::Reduction::fast;
  const compile::CompileFacts facts{.world_size = 1, .device = device::DeviceKind::cuda};
  const int64_t limit = 3 * fullest_rank(compile::CompiledRun(options, facts)).plan.total_bytes + 777;
  const LargestBatch found = largest_batch(options, facts, limit, kManySamples);
  ASSERT_TRUE(found.fit && found.next);
  EXPECT_EQ(found.next->micro_batch, found.fit->micro_batch + 1);
  EXPECT_GT(found.next->bytes, limit);
}

}  // namespace
}  // namespace lockstep::plan
