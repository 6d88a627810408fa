#include "ops/cuda/replica_sum.h"

#include <gtest/gtest.h>

#include "ops/gpu_memory.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

TEST(ReplicaSum, FollowsTheTree) {
  const TestedGpu gpu;
  for (const int replicas : {1, 2, 3, 4, 5, 6, 7, 8, 13, 32, 100, 1024})
    for (const auto& [count, stride] : {std::pair<int64_t, int64_t>{1, 1}, {10, 10}, {8, 12}, {2600, 2600}}) {
      if (replicas > 100 && count > 100) continue;
      const Values terms = random_floats(replicas * stride, 3);
      const device::Buffer data = gpu.upload(terms),
                           sums = gpu.upload(Values(static_cast<size_t>(count), NAN));
      ops::sum_replicas(floats_of(data), stride, replicas, count, floats_of(sums), *gpu.stream);
      Values expected;
      for (int64_t i = 0; i < count; ++i)
        expected.push_back(tree_sum(
            0, replicas, [&](int replica) { return terms[static_cast<size_t>(replica * stride + i)]; }));
      EXPECT_EQ(bits_of(gpu.download(sums, expected.size())), bits_of(expected))
          << replicas << " replicas of " << count << ", " << stride << " apart";
    }
}

TEST(ReplicaSum, AddsInPlace) {
  const TestedGpu gpu;
  const device::Buffer to = gpu.upload({1, 2, 3, 4, 5}), from = gpu.upload({10, 20, 30, 40, 50});
  ops::add_floats(floats_of(to), floats_of(from), 5, *gpu.stream);
  EXPECT_EQ(gpu.download(to, 5), (Values{11, 22, 33, 44, 55}));
}

}  // namespace
}  // namespace lockstep::testing
