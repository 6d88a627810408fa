#include "ops/cuda/folded_product.h"

#include <gtest/gtest.h>

#include "ops/gpu_memory.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

ops::ProductSpec gradient_of(int64_t units, int64_t inputs, int64_t rows, DType factors) {
  return {.rows = units, .columns = inputs, .inner = rows, .transpose_a = true, .factors = factors};
}

Values run(const ops::ProductSpec& spec, int replicas, const Values& dy, const Values& x) {
  const TestedGpu gpu;
  ops::FoldedProduct product(spec, replicas);
  product.prepare(*gpu.device);
  const auto count = static_cast<size_t>(spec.c_count());
  const device::Buffer dy_data = gpu.upload(dy, spec.factors), x_data = gpu.upload(x, spec.factors),
                       gradient = gpu.upload(Values(count, NAN)),
                       workspace = gpu.device->allocate(product.workspace_bytes());
  product.run({.a = dy_data.data(), .b = x_data.data(), .c = gradient.data()}, workspace.data(), *gpu.stream);
  return gpu.download(gradient, count);
}

// In one call, in calls of a node of the tree each, the last of fewer replicas, and one by one.
TEST(FoldedProduct, HasTheBitsOfEachReplicaAddedAlongTheTree) {
  struct Shape {
    int64_t units, inputs, rows;
  };
  for (const auto& [units, inputs, rows] : {Shape{8, 4, 8}, {12, 20, 16}, {5, 7, 8}})
    for (const DType dtype : {DType::float32, DType::bfloat16})
      for (const int replicas : {1, 2, 3, 6, 8}) {
        const ops::ProductSpec spec = gradient_of(units, inputs, rows, dtype);
        const Values dy = random_floats(replicas * rows * units, 1),
                     x = random_floats(replicas * rows * inputs, 2);
        std::vector<Values> each;
        for (int replica = 0; replica < replicas; ++replica)
          each.push_back(
              run(spec, 1, {dy.begin() + replica * rows * units, dy.begin() + (replica + 1) * rows * units},
                  {x.begin() + replica * rows * inputs, x.begin() + (replica + 1) * rows * inputs}));
        Values expected;
        for (size_t i = 0; i < each[0].size(); ++i)
          expected.push_back(
              tree_sum(0, replicas, [&](int replica) { return each[static_cast<size_t>(replica)][i]; }));
        EXPECT_EQ(bits_of(run(spec, replicas, dy, x)), bits_of(expected))
            << replicas << " of " << spec.to_string();
      }
}

TEST(FoldedProduct, ComputesAsManyAtOnceAsWorkspaceAllows) {
  const int64_t bytes = 4096 * 1024 * 4;  // of a gradient: four make 64 MiB
  const auto of = [&](int replicas) {
    return ops::FoldedProduct(gradient_of(4096, 1024, 8, DType::bfloat16), replicas).workspace_bytes() -
           (ops::Product::workspace_bytes() + 63) / 64 * 64;
  };
  EXPECT_EQ(of(1), 0);
  EXPECT_EQ(of(3), 3 * bytes);
  EXPECT_EQ(of(4), 4 * bytes);
  EXPECT_EQ(of(8), 4 * bytes + bytes);       // two calls, of which one sum waits
  EXPECT_EQ(of(32), 4 * bytes + 3 * bytes);  // eight
}

}  // namespace
}  // namespace lockstep::testing
