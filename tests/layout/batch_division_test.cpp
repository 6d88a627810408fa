#include "layout/batch_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::layout {
namespace {

using testing::HasSubstr;

TEST(BatchDivision, ReproducibleLeavesDoNotDependOnWorkers) {
  for (int workers = 1; workers <= 8; ++workers) {
    const auto division = divide_batch(64, 3, 8, Reduction::reproducible, workers);
    EXPECT_EQ(division.leaves, 8);
    EXPECT_EQ(division.leaf_samples, 8);
    EXPECT_EQ(division.micro_batch, 2);  // the largest divisor of 8 not above 3
    EXPECT_EQ(division.micro_batches_per_leaf, 4);
  }
}

TEST(BatchDivision, FastHasOneLeafPerWorker) {
  const auto division = divide_batch(64, 0, 8, Reduction::fast, 2);
  EXPECT_EQ(division.leaves, 2);
  EXPECT_EQ(division.micro_batch, 32);
  EXPECT_EQ(division.micro_batches_per_leaf, 1);
}

TEST(BatchDivision, FastHasOneLeafPerPushWhereThereAreMore) {
  const auto division = divide_batch(64, 8, 8, Reduction::fast, 3, 4);
  EXPECT_EQ(division.leaves, 4);
  EXPECT_EQ(division.leaf_samples, 16);
  EXPECT_EQ(division.micro_batches_per_leaf, 2);
  EXPECT_EQ(division.workers, 3);
  EXPECT_EQ(division.leaves_of(0), (TreeNode{0, 2}));  // of an evaluation
  EXPECT_EQ(division.leaves_of(2), (TreeNode{3, 4}));
}

TEST(BatchDivision, WorkersShareLeavesEvenlyAndInOrder) {
  const auto division = divide_batch(12, 0, 4, Reduction::reproducible, 3);
  EXPECT_EQ(division.leaves_of(0), (TreeNode{0, 2}));
  EXPECT_EQ(division.leaves_of(1), (TreeNode{2, 3}));
  EXPECT_EQ(division.leaves_of(2), (TreeNode{3, 4}));
}

TEST(BatchDivision, EverySampleOfTheBatchIsReadOnce) {
  for (int workers = 1; workers <= 6; ++workers) {
    const auto division = divide_batch(60, 5, 6, Reduction::reproducible, workers);
    std::vector<int> read(60);
    for (int w = 0; w < workers; ++w)
      for (int m = 0; m < division.micro_batches_of(w); ++m)
        for (int64_t i = 0; i < division.micro_batch; ++i)
          ++read.at(static_cast<size_t>(division.first_sample(w, m) + i));
    EXPECT_THAT(read, testing::Each(1)) << workers;
  }
}

TEST(BatchDivision, RefusalsNameTheFieldAndNearbyValues) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message([] { divide_batch(10, 0, 4, Reduction::reproducible, 2); }),
              testing::AllOf(HasSubstr("trainer.global_batch 10"), HasSubstr("virtual_replicas 4"),
                             HasSubstr("8 or 12")));
  EXPECT_THAT(message([] { divide_batch(64, 0, 2, Reduction::reproducible, 3); }),
              HasSubstr("at most 2 of them"));
  EXPECT_THAT(message([] { divide_batch(64, 0, 2, Reduction::fast, 3); }), HasSubstr("63 or 66"));
  EXPECT_THAT(message([] { divide_batch(66, 0, 2, Reduction::fast, 3, 4); }),
              Mentions("66 ... 4 pushes ... 64 ... 68"));
}

TEST(BatchDivision, IsDescribedAsAProduct) {
  EXPECT_EQ(describe(divide_batch(64, 8, 4, Reduction::reproducible, 2)),
            "global batch 64 = 2 workers x 2 leaves x 2 micro-batches x 8 samples");
}

}  // namespace
}  // namespace lockstep::layout
