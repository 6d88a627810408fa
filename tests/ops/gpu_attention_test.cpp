// What is particular to attention on GPUs: tiles, limits and memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "ops/cuda/attention_order.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

TEST(GpuAttention, LengthsAroundTilesAgreeWithTheCpu) {
  const Attention op{.heads = 2};
  for (const auto dtype : {DType::bfloat16, DType::float32})
    for (const int64_t positions : {15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193}) {
      const ops::KernelOptions options{.batch = 1, .compute = dtype};
      const std::vector<TensorSpec> inputs{{{positions, 3 * 2 * 32}}};
      OpHarness gpu(op, inputs, options, device::DeviceKind::cuda),
          cpu(op, inputs, options, device::DeviceKind::cpu);
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

using Places = std::vector<std::pair<unsigned, unsigned>>;

/// Unit and tile of each block that owns something, in the order in which blocks start.
Places places_of(const ops::AttentionOrder& order) {
  Places places;
  for (unsigned z = 0; z < order.sections(); ++z)
    for (unsigned y = 0; y < order.tiles(); ++y)
      for (unsigned x = 0; x < order.section_units(); ++x)
        if (const auto place = order.of_block(x, y, z); order.exists(place))
          places.emplace_back(place.unit, place.tile);
  return places;
}

TEST(GpuAttention, EachTileOfEachHeadHasABlock) {
  // Heads that read a third of a section each, and more than a whole one.
  for (const int64_t unit_bytes :
       {ops::AttentionOrder::kSectionBytes / 3, 2 * ops::AttentionOrder::kSectionBytes})
    for (const unsigned units : {1u, 2u, 3u, 7u, 768u})
      for (const unsigned tiles : {1u, 2u, 5u, 65535u / units}) {
        Places expected, places = places_of({units, tiles, ops::HeaviestTiles::last, unit_bytes});
        for (unsigned unit = 0; unit < units; ++unit)
          for (unsigned tile = 0; tile < tiles; ++tile) expected.emplace_back(unit, tile);
        std::sort(places.begin(), places.end());
        ASSERT_TRUE(places == expected) << units << " heads of " << tiles << " tiles";
      }
}

TEST(GpuAttention, HeavyTilesStartFirstWithinSectionsOfHeads) {
  const int64_t half = ops::AttentionOrder::kSectionBytes / 2;
  EXPECT_EQ(places_of({5, 2, ops::HeaviestTiles::last, half}),
            (Places{{0, 1}, {1, 1}, {0, 0}, {1, 0}, {2, 1}, {3, 1}, {2, 0}, {3, 0}, {4, 1}, {4, 0}}));
  EXPECT_EQ(places_of({5, 2, ops::HeaviestTiles::first, half}),
            (Places{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {3, 0}, {2, 1}, {3, 1}, {4, 0}, {4, 1}}));
}

TEST(GpuAttention, KeepsOneNumberForEachRowOfBackward) {
  const auto kernel =
      ops::make_kernel(device::DeviceKind::cuda, Attention{.heads = 12},
                       std::vector<TensorSpec>{{{1024, 3 * 768}}}, {.batch = 4, .compute = DType::bfloat16});
  EXPECT_EQ(kernel->workspace_bytes(ops::KernelPhase::forward), 0);
  EXPECT_EQ(kernel->workspace_bytes(ops::KernelPhase::backward_input), 4 * 12 * 1024 * 4);
  EXPECT_EQ(kernel->workspace_bytes(ops::KernelPhase::backward_weight), 0);
}

TEST(GpuAttention, RefusesWhatItsKernelsDoNotTake) {
  const auto make = [](Shape shape) {
    return ops::make_kernel(device::DeviceKind::cuda, Attention{.heads = 1}, std::vector<TensorSpec>{{shape}},
                            {.batch = 1});
  };
  EXPECT_NO_THROW(make({4, 3 * 256}));
  EXPECT_THROW(make({4, 3 * 257}), ConfigError);
  EXPECT_NO_THROW(make({16 * 65535, 3}));
  EXPECT_THROW(make({16 * 65535 + 1, 3}), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
