#include "plan/largest_batch.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/balance.h"
#include "plan/device_plan.h"
#include "plan/memory_limit.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

constexpr int64_t kManySamples = int64_t{1} << 40;

compile::CompileOptions with_batch(compile::CompileOptions options, int64_t micro_batch,
                                   int64_t global_batch) {
  options.micro_batch = micro_batch;
  options.global_batch = global_batch;
  return options;
}

/// As a training with device.memory_limit is.
bool is_refused(const compile::CompileOptions& stated, int64_t limit) {
  const compile::CompileFacts facts = facts_of(stated);
  const compile::CompileOptions options = balanced(stated, facts, limit);
  return !excess(compile::CompiledRun(options, facts), options, facts, limit).empty();
}

/// What is named fits into device.memory_limit, and one sample more does not.
void expect_exact(const compile::CompileOptions& options, int64_t times, const std::string& what) {
  const compile::CompileFacts facts = facts_of(options);
  const compile::CompiledRun run(options, facts);
  const int64_t limit = times * fullest_rank(run).plan.total_bytes;
  const LargestBatch found = largest_batch(options, facts, limit, kManySamples);
  ASSERT_TRUE(found.fit && found.next) << what;
  const compile::CompileOptions largest =
      with_batch(options, found.fit->micro_batch, found.fit->global_batch);
  const compile::CompiledRun compiled(balanced(largest, facts, limit), facts);
  EXPECT_EQ(fullest_rank(compiled).plan.total_bytes, found.fit->bytes) << what;
  EXPECT_FALSE(is_refused(largest, limit)) << what;
  // Virtual replicas that kernels join, and micro-batches, stay as many as they were.
  const int64_t joined = run.division().leaves_at_once;
  EXPECT_EQ(compiled.division().micro_batch, found.fit->micro_batch) << what;
  EXPECT_EQ(compiled.division().micro_batches_of(0), run.division().micro_batches_of(0)) << what;
  EXPECT_GT(found.fit->micro_batch, run.division().micro_batch) << what;
  const int64_t parts = found.fit->global_batch / found.fit->micro_batch;
  EXPECT_EQ(found.next->micro_batch, found.fit->micro_batch + joined) << what;
  EXPECT_EQ(found.next->global_batch, parts * found.next->micro_batch) << what;
  EXPECT_GT(found.next->bytes, limit) << what;
  EXPECT_TRUE(is_refused(with_batch(options, found.next->micro_batch, found.next->global_batch), limit))
      << what;
}

TEST(LargestBatch, IsExact) {
  for (const auto reduction : {layout::Reduction::reproducible, layout::Reduction::fast})
    for (const char* layout :
         {"dp=1", "dp=2", "dp=2,pp=2", "dp=2,sync=ps", "dp=2,shard=optimizer", "dp=1,recompute=full",
          "dp=2,recompute=selective", "dp=2,sync=ps,servers=2,placement=colocated"}) {
      compile::CompileOptions options = gpt_options(layout);
      options.virtual_replicas = 8;
      options.parallel.reduction = reduction;
      expect_exact(options, 5, layout);
    }
}

compile::CompileOptions lenet_options(const std::string& layout) {
  compile::CompileOptions options{
      .graph = model::share_graph(model::make_lenet({.image = {28, 28, 1}, .classes = 10})),
      .global_batch = 32,
      .state_slots = 1};
  options.parallel.layout = layout::parse_layout(layout);
  options.parallel.reduction = layout::Reduction::fast;
  return options;
}

TEST(LargestBatch, IsExactForConvolutions) {
  for (const char* layout : {"dp=1", "dp=2,shard=optimizer", "dp=2,sync=ps", "dp=1,recompute=full"})
    for (const int64_t times : {2, 3, 7}) expect_exact(lenet_options(layout), times, layout);
}

/// Without stages memory grows with the batch, so that nothing beyond the next size fits.
TEST(LargestBatch, NothingLargerFits) {
  for (const char* layout : {"dp=1", "dp=1,recompute=selective", "dp=1,recompute=full"})
    for (compile::CompileOptions options : {gpt_options(layout), lenet_options(layout)}) {
      options.parallel.reduction = layout::Reduction::fast;
      const compile::CompileFacts facts = facts_of(options);
      const int64_t limit = 3 * fullest_rank(compile::CompiledRun(options, facts)).plan.total_bytes + 12345;
      const auto found = largest_batch(options, facts, limit, kManySamples).fit;
      ASSERT_TRUE(found);
      for (int64_t more = 1; more <= 40; ++more)
        EXPECT_FALSE(fit_batch(options, facts, limit, found->micro_batch + more)) << layout << " " << more;
    }
}

/// GPT-2 in 70 GiB.
TEST(LargestBatch, OfALargeModel) {
  compile::CompileOptions options{
      .graph = model::share_graph(
          model::make_gpt({.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .width = 768})),
      .storage = DType::bfloat16,
      .global_batch = 512,
      .micro_batch = 16,
      .state_slots = 2};
  options.parallel.layout = layout::parse_layout("dp=1");
  options.parallel.reduction = layout::Reduction::fast;
  const compile::CompileFacts facts = facts_of(options);
  const int64_t limit = int64_t{70} << 30;
  const auto found = largest_batch(options, facts, limit, kManySamples).fit;
  ASSERT_TRUE(found);
  EXPECT_GT(found->micro_batch, 16);
  EXPECT_EQ(found->global_batch, 32 * found->micro_batch);
  EXPECT_LE(found->bytes, limit);
  EXPECT_EQ(fit_batch(options, facts, limit, found->micro_batch), found);
  EXPECT_FALSE(fit_batch(options, facts, limit, found->micro_batch + 1));
}

TEST(LargestBatch, MayBeSmallerThanTheBatchThatDoesNotFit) {
  const compile::CompileOptions options = with_batch(gpt_options("dp=1"), 0, 16);
  const compile::CompileFacts facts = facts_of(options);
  const int64_t bytes = fullest_rank(compile::CompiledRun(options, facts)).plan.total_bytes;
  const auto found = largest_batch(options, facts, bytes - 1, kManySamples).fit;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->global_batch, 15);
}

TEST(LargestBatch, IsNoLargerThanTheData) {
  const compile::CompileOptions options = gpt_options("dp=2");
  const auto found = largest_batch(options, facts_of(options), std::numeric_limits<int64_t>::max(), 1007).fit;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->global_batch, 1000) << "two workers with four micro-batches each";
}

TEST(LargestBatch, TellsBeforeEachPlanThatItGetsOn) {
  const compile::CompileOptions options = gpt_options("dp=1");
  const compile::CompileFacts facts = facts_of(options);
  const int64_t limit = 3 * fullest_rank(compile::CompiledRun(options, facts)).plan.total_bytes;
  int words = 0;
  const LargestBatch found = largest_batch(options, facts, limit, kManySamples, [&words] { ++words; });
  EXPECT_GE(words, 3) << "the run's own batch, the largest, and the next";
  EXPECT_EQ(found.fit, largest_batch(options, facts, limit, kManySamples).fit);
  struct Enough {};
  for (int most = 0; most < words; ++most) {
    int left = most;
    EXPECT_THROW(largest_batch(options, facts, limit, kManySamples,
                               [&left] {
                                 if (left-- == 0) throw Enough();
                               }),
                 Enough);
  }
}

TEST(LargestBatch, IsNoneIfNothingFits) {
  const compile::CompileOptions options = gpt_options("dp=1");
  EXPECT_FALSE(largest_batch(options, facts_of(options), 1, kManySamples).fit);
  EXPECT_FALSE(largest_batch(options, facts_of(options), 0, kManySamples).fit);
  EXPECT_FALSE(largest_batch(options, facts_of(options), kManySamples, 0).fit);
  EXPECT_FALSE(fit_batch(options, facts_of(options), 1, 1));
}

}  // namespace
}  // namespace lockstep::plan
