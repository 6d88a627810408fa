// What is particular to attention on GPUs: tiles, limits and memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/cuda/attention_order.h"
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

TEST(GpuAttention, EachTileOfEachHeadHasABlock) {
  // Heads that read a third of a section each, and more than a whole one.
  for (const int64_t unit_bytes : {AttentionOrder::kSectionBytes / 3, 2 * AttentionOrder::kSectionBytes})
    for (const unsigned units : {1u, 2u, 3u, 7u, 768u})
      for (const unsigned tiles : {1u, 2u, 5u, 70000u / units}) {
        const AttentionOrder order(units, tiles, HeaviestTiles::last, unit_bytes);
        ASSERT_EQ(order.blocks(), units * tiles);
        std::vector<bool> owned(order.blocks());
        for (unsigned b = 0; b < order.blocks(); ++b) {
          const auto [unit, tile] = order.of_block(b);
          ASSERT_TRUE(unit < units && tile < tiles && !owned[unit * tiles + tile]) << "block " << b;
          owned[unit * tiles + tile] = true;
        }
      }
}

TEST(GpuAttention, HeavyTilesStartFirstWithinSectionsOfHeads) {
  const auto order_of = [](HeaviestTiles heaviest) {
    const AttentionOrder order(5, 2, heaviest, AttentionOrder::kSectionBytes / 2);
    std::vector<std::pair<unsigned, unsigned>> places;
    for (unsigned b = 0; b < order.blocks(); ++b)
      places.emplace_back(order.of_block(b).unit, order.of_block(b).tile);
    return places;
  };
  using Places = std::vector<std::pair<unsigned, unsigned>>;
  EXPECT_EQ(order_of(HeaviestTiles::last),
            (Places{{0, 1}, {1, 1}, {0, 0}, {1, 0}, {2, 1}, {3, 1}, {2, 0}, {3, 0}, {4, 1}, {4, 0}}));
  EXPECT_EQ(order_of(HeaviestTiles::first),
            (Places{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {3, 0}, {2, 1}, {3, 1}, {4, 0}, {4, 1}}));
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
  const auto make = [](Shape shape, int64_t heads = 1, int64_t batch = 1) {
    return make_kernel(DeviceKind::cuda, Attention{.heads = heads}, std::vector<TensorSpec>{{shape}},
                       {.batch = batch});
  };
  EXPECT_NO_THROW(make({4, 3 * 256}));
  EXPECT_THROW(make({4, 3 * 257}), ConfigError);
  const int64_t most = 1 << 30;
  EXPECT_NO_THROW(make({most, 3}));
  EXPECT_THROW(make({most + 1, 3}), ConfigError);
  EXPECT_NO_THROW(make({most / 8, 3 * 4}, 4, 2));
  EXPECT_THROW(make({most / 8 + 1, 3 * 4}, 4, 2), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
