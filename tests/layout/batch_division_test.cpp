#include "layout/batch_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  const auto expect_once = [](const BatchDivision& division) {
    std::vector<int> read(static_cast<size_t>(division.global_batch));
    for (int worker = 0; worker < division.workers; ++worker) {
      const std::vector<BatchPart> parts = division.parts_of(worker);
      EXPECT_EQ(static_cast<int>(parts.size()), division.micro_batches_of(worker));
      for (const BatchPart& part : parts)
        for (int64_t i = 0; i < part.samples; ++i) ++read.at(static_cast<size_t>(part.first_sample + i));
    }
    EXPECT_THAT(read, testing::Each(1)) << division.workers;
  };
  for (int workers = 1; workers <= 6; ++workers)
    for (const int64_t limit : {5, 10, 25, 60}) {  // half a leaf, one, two, all
      const BatchDivision division = divide_batch(60, limit, 6, Reduction::reproducible, workers);
      for (const BatchDivision& one : {division, join_leaves(division, limit)}) {
        expect_once(one);
        expect_once(one.of_evaluation());
      }
    }
}

TEST(BatchDivision, PartsAreMicroBatchesInTheirOrder) {
  const BatchDivision halves = divide_batch(16, 2, 4, Reduction::reproducible, 2);
  EXPECT_THAT(halves.parts_of(1),
              testing::ElementsAre(BatchPart{8, 2}, BatchPart{10, 2}, BatchPart{12, 2}, BatchPart{14, 2}));
  EXPECT_THAT(halves.of_evaluation().parts_of(1), testing::ElementsAre(BatchPart{4, 2}, BatchPart{6, 2}));
  const BatchDivision unlike =
      join_leaves(divide_batch(16, 0, 8, Reduction::reproducible, 3), 8);  // 2 1 | 1 2 | 2
  EXPECT_THAT(unlike.parts_of(1), testing::ElementsAre(BatchPart{6, 2}, BatchPart{8, 4}));
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

BatchDivision joined(int replicas, int workers, int64_t limit, int stages = 1) {
  return join_leaves(divide_batch(replicas, 0, replicas, Reduction::reproducible, workers), limit, stages);
}

/// What workers compute at once, worker by worker: "2 1 | 1 2 | 2".
std::string sizes_of(const BatchDivision& division) {
  std::string text;
  for (int worker = 0; worker < division.workers; ++worker) {
    text += worker == 0 ? "" : " |";
    for (const TreeNode& node : division.nodes_of(worker))
      text += (text.empty() ? "" : " ") + std::to_string(node.size());
  }
  return text;
}

TEST(JoinedLeaves, AreNodesOfTheTreeOverVirtualReplicas) {
  for (int replicas = 1; replicas <= 48; ++replicas)
    for (int workers = 1; workers <= replicas; ++workers)
      for (const int limit : {1, 2, 3, 5, 8, 12, 48}) {
        const BatchDivision division = joined(replicas, workers, limit);
        ASSERT_EQ(division.leaves, replicas);
        ASSERT_EQ(division.micro_batch, division.sizes().front());
        ASSERT_LE(division.micro_batch, limit);
        int next = 0;
        for (int worker = 0; worker < workers; ++worker) {
          const auto nodes = division.nodes_of(worker);
          ASSERT_FALSE(nodes.empty());
          ASSERT_EQ(division.micro_batches_of(worker), static_cast<int>(nodes.size()));
          ASSERT_LE(division.micro_batches_of(worker), division.most_micro_batches());
          for (int m = 0; m < static_cast<int>(nodes.size()); ++m) {
            const TreeNode node = nodes[static_cast<size_t>(m)];
            ASSERT_EQ(node.begin, next);
            ASSERT_EQ(division.parts_of(worker)[static_cast<size_t>(m)], (BatchPart{next, node.size()}));
            ASSERT_EQ(nodes_within(replicas, node.begin, node.end), std::vector{node});
            next = node.end;
          }
        }
        ASSERT_EQ(next, replicas);
        ASSERT_EQ(division.leaves_of(0).size(), (replicas + workers - 1) / workers);  // the largest share
      }
}

TEST(JoinedLeaves, AreAsManyAsAWorkerCanComputeAtOnce) {
  EXPECT_EQ(sizes_of(joined(8, 1, 8)), "8");
  EXPECT_EQ(sizes_of(joined(8, 2, 8)), "4 | 4");
  EXPECT_EQ(sizes_of(joined(8, 3, 8)), "2 1 | 1 2 | 2");
  EXPECT_EQ(sizes_of(joined(8, 5, 8)), "2 | 2 | 2 | 1 | 1");
  EXPECT_EQ(sizes_of(joined(16, 3, 16)), "4 2 | 2 4 | 4");
  EXPECT_EQ(sizes_of(joined(64, 3, 64)), "16 4 2 | 2 8 8 4 | 4 16");
  EXPECT_EQ(sizes_of(joined(64, 3, 8)), "8 8 4 2 | 2 8 8 4 | 4 8 8");
  EXPECT_EQ(sizes_of(joined(12, 8, 12)), "2 | 2 | 2 | 2 | 1 | 1 | 1 | 1");
  EXPECT_EQ(sizes_of(joined(6, 1, 6)), "6");
  EXPECT_EQ(sizes_of(joined(6, 1, 5)), "4 2");
  EXPECT_EQ(sizes_of(joined(7, 1, 3)), "2 2 3");
  EXPECT_EQ(sizes_of(joined(12, 2, 12)), "4 2 | 2 4");
  EXPECT_EQ(sizes_of(joined(8, 1, 3)), "2 2 2 2");
  EXPECT_EQ(joined(64, 3, 64).sizes(), (std::vector{16, 8, 4, 2}));
  EXPECT_EQ(joined(64, 3, 64).most_micro_batches(), 4);
}

TEST(JoinedLeaves, AreOneOfSeveralMicroBatchesEachIfTheseAreSmaller) {
  const auto apart = divide_batch(64, 4, 8, Reduction::reproducible, 3);
  const auto division = join_leaves(apart, 4);
  EXPECT_EQ(division.leaves_at_once, 1);
  EXPECT_EQ(division.sizes(), std::vector{1});
  EXPECT_EQ(division.micro_batches_of(0), 6);
}

TEST(JoinedLeaves, OfAPipelineAreNodesOfOneSize) {
  const auto of_pipeline = [](int replicas, int workers, int stages) {
    return joined(replicas, workers, replicas, stages).leaves_at_once;
  };
  EXPECT_EQ(of_pipeline(8, 1, 2), 1);
  EXPECT_EQ(of_pipeline(64, 1, 2), 4);  // 16 micro-batches
  EXPECT_EQ(of_pipeline(64, 2, 2), 2);  // likewise, of each worker
  EXPECT_EQ(of_pipeline(64, 1, 4), 2);
  EXPECT_EQ(of_pipeline(64, 1, 1), 64);
  EXPECT_EQ(of_pipeline(34, 1, 2), 1);  // 17 are no multiple of the stages, as interleaved schedules want
  EXPECT_EQ(of_pipeline(96, 1, 3), 4);  // 24
  EXPECT_EQ(of_pipeline(64, 3, 2), 1);  // replicas would have unequal numbers of micro-batches
}

TEST(JoinedLeaves, AreDescribed) {
  EXPECT_EQ(describe(joined(64, 3, 16)),
            "global batch 64 = 3 workers x 20 to 22 leaves x 1 sample, up to 16 leaves at once");
}

}  // namespace
}  // namespace lockstep::layout
