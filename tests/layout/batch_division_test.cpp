#include "layout/batch_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

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

/// The tree over so many leaves that begin with number `first`, each written by `leaf`.
std::string tree_text(TreeNode node, const std::function<std::string(int)>& leaf) {
  if (node.is_leaf()) return leaf(node.begin);
  return "(" + tree_text(node.left(), leaf) + "+" + tree_text(node.right(), leaf) + ")";
}

TEST(JoinedLeaves, KeepTheTreeOverVirtualReplicas) {
  for (int replicas = 1; replicas <= 48; ++replicas)
    for (int workers = 1; workers <= replicas; ++workers)
      for (const int limit : {1, 2, 3, 5, 8, 12, 48}) {
        const auto apart = divide_batch(replicas, 0, replicas, Reduction::reproducible, workers);
        const auto joined = join_leaves(apart, limit);
        const int each = joined.replicas_per_leaf;
        ASSERT_EQ(joined.leaves * each, replicas);
        ASSERT_EQ(joined.micro_batch, each);
        ASSERT_LE(each, limit);
        const std::string whole = tree_text({0, replicas}, [](int leaf) { return std::to_string(leaf); });
        const std::string of_joined = tree_text({0, joined.leaves}, [&](int leaf) {
          return tree_text({0, each}, [&](int within) { return std::to_string(leaf * each + within); });
        });
        ASSERT_EQ(of_joined, whole) << replicas << " replicas, " << workers << " workers, " << each
                                    << " at once";
        ASSERT_EQ(joined.leaves_of(0).size() * each, apart.leaves_of(0).size());  // the largest share
        ASSERT_GT(joined.leaves_of(workers - 1).size(), 0);
      }
}

TEST(JoinedLeaves, AreAsManyAsAWorkerCanComputeAtOnce) {
  const auto joined = [](int replicas, int workers, int64_t limit) {
    return join_leaves(divide_batch(64L * replicas, limit, replicas, Reduction::reproducible, workers),
                       limit > 0 ? limit : 64L * replicas)
        .replicas_per_leaf;
  };
  EXPECT_EQ(joined(8, 1, 0), 8);
  EXPECT_EQ(joined(8, 2, 0), 4);
  EXPECT_EQ(joined(8, 3, 0), 1);   // nodes of two would be 2, 1 and 1: four replicas instead of three
  EXPECT_EQ(joined(16, 3, 0), 2);  // 3, 3 and 2 nodes
  EXPECT_EQ(joined(64, 3, 0), 2);
  EXPECT_EQ(joined(12, 8, 0), 1);  // six nodes for eight workers are too few
  EXPECT_EQ(joined(6, 1, 0), 6);
  EXPECT_EQ(joined(12, 2, 0), 2);
  EXPECT_EQ(joined(8, 1, 255), 2);
  EXPECT_EQ(joined(8, 1, 63), 1);  // several micro-batches of a replica
  const auto of_pipeline = [](int replicas, int workers, int stages) {
    return join_leaves(divide_batch(replicas, 0, replicas, Reduction::reproducible, workers), replicas,
                       stages)
        .replicas_per_leaf;
  };
  EXPECT_EQ(of_pipeline(8, 1, 2), 1);
  EXPECT_EQ(of_pipeline(64, 1, 2), 4);  // 16 micro-batches
  EXPECT_EQ(of_pipeline(64, 2, 2), 2);  // likewise, of each worker
  EXPECT_EQ(of_pipeline(64, 1, 4), 2);
  EXPECT_EQ(of_pipeline(64, 1, 1), 64);
  EXPECT_EQ(of_pipeline(34, 1, 2), 1);  // 17 are no multiple of the stages, as interleaved schedules want
  EXPECT_EQ(of_pipeline(96, 1, 3), 4);  // 24
  EXPECT_EQ(describe(join_leaves(divide_batch(64, 0, 8, Reduction::reproducible, 2), 64)),
            "global batch 64 = 2 workers x 1 leaf of 4 virtual replicas x 1 micro-batch x 32 samples");
}

}  // namespace
}  // namespace lockstep::layout
