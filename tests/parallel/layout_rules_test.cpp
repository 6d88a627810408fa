#include "parallel/layout_rules.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::parallel {
namespace {

/// A choice that the rule of `field` refuses, and one that differs in one thing and is allowed.
struct Case {
  std::string field;
  std::string layout, allowed_layout;
  ParallelOptions options, allowed_options;
  // Beside the options, for both.
  DType storage = DType::float32;
  bool states_async_statistics = false;
  bool allowed_states_async_statistics = false;
  std::optional<std::string> statistic = "";
  bool histograms = false, writes_samples = false;
  std::optional<device::DeviceKind> device = {};
  std::optional<bool> shared_memory = {};
};

ParallelOptions with(AllReduceAlgorithm algorithm, layout::Reduction reduction = layout::Reduction::fast) {
  return {.reduction = reduction, .algorithm = algorithm};
}

constexpr auto kExact = layout::Reduction::reproducible;
constexpr auto kCpu = device::DeviceKind::cpu;
constexpr auto kGpu = device::DeviceKind::cuda;
using enum AllReduceAlgorithm;

std::vector<Case> cases() {
  const std::string servers = "dp=2,sync=ps,servers=2", stale = servers + ",mode=stale,bound=2",
                    async = servers + ",mode=async";
  return {
      {"parallel.algorithm", "dp=2", "dp=2", with(ring, kExact), with(ring)},
      {"parallel.algorithm", "dp=2", "dp=2", with(library, kExact), with(tree, kExact)},
      {"parallel.algorithm", "dp=2,shard=optimizer", "dp=2", with(library), with(library)},
      {"parallel.algorithm", "dp=2,shard=optimizer", "dp=2,shard=optimizer", with(shared_memory), with(ring)},
      {"parallel.algorithm", "dp=2,shard=optimizer", "dp=2,shard=optimizer", with(tree), with(tree, kExact)},
      {"parallel.algorithm", servers, "dp=2", with(ring), with(ring)},
      {"parallel.algorithm", "dp=2,aggregate=host", "dp=2", with(ring), with(ring)},
      {.field = "parallel.algorithm",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = with(shared_memory),
       .allowed_options = with(automatic),
       .device = kGpu,
       .shared_memory = true},
      {.field = "parallel.algorithm",
       .layout = "dp=2",
       .allowed_layout = "dp=1",
       .options = with(shared_memory),
       .allowed_options = with(shared_memory),
       .device = kCpu,
       .shared_memory = false},
      {.field = "parallel.algorithm",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = with(tree),
       .allowed_options = with(tree, kExact),
       .device = kCpu,
       .shared_memory = true},
      {"parallel.server_threads",
       servers + ",placement=colocated",
       servers,
       {.server_threads = 2},
       {.server_threads = 2}},
      {"parallel.server_device",
       servers + ",placement=colocated",
       servers,
       {.servers_on_gpus = true},
       {.servers_on_gpus = true}},
      {"parallel.server_device", stale, servers, {.servers_on_gpus = true}, {.servers_on_gpus = true}},
      {.field = "parallel.server_device",
       .layout = servers,
       .allowed_layout = servers,
       .options = {.servers_on_gpus = true},
       .allowed_options = {},
       .device = kCpu},
      {"parallel.async_learning_rate",
       stale,
       async,
       {.async_learning_rate = AsyncLearningRate::as_stated},
       {.async_learning_rate = AsyncLearningRate::as_stated}},
      {"parallel.reduction", stale, servers + ",mode=stale,bound=0", with(automatic, kExact),
       with(automatic, kExact)},
      {.field = "precision.compute", .layout = async, .allowed_layout = servers, .storage = DType::float16},
      {"parallel.aggregate", stale + ",aggregate=host", servers + ",aggregate=host", {}, {}},
      {.field = "parallel.aggregate",
       .layout = "dp=2,aggregate=host",
       .allowed_layout = "dp=2",
       .device = kGpu},
      {.field = "trainer.sample", .layout = stale, .allowed_layout = servers, .writes_samples = true},
      {.field = "metrics.histogram_every_steps",
       .layout = async,
       .allowed_layout = servers,
       .histograms = true},
      {.field = "parallel.async_statistics",
       .layout = async,
       .allowed_layout = servers,
       .statistic = "norm.mean"},
      {.field = "parallel.async_statistics",
       .layout = servers,
       .allowed_layout = async,
       .states_async_statistics = true,
       .allowed_states_async_statistics = true,
       .statistic = "norm.mean"},
      {.field = "parallel.async_statistics",
       .layout = async,
       .allowed_layout = async,
       .states_async_statistics = true,
       .statistic = ""},
  };
}

std::optional<Refusal> refusal_of(const Case& one, const std::string& layout, const ParallelOptions& options,
                                  bool states_async_statistics) {
  return first_refusal({.options = options,
                        .layout = layout::parse_layout(layout),
                        .storage = one.storage,
                        .states_async_statistics = states_async_statistics,
                        .statistic = one.statistic,
                        .histograms = one.histograms,
                        .writes_samples = one.writes_samples,
                        .device = one.device,
                        .shared_memory = one.shared_memory});
}

TEST(LayoutRules, RefuseWhatDoesNotFit) {
  for (const Case& one : cases()) {
    const auto refusal = refusal_of(one, one.layout, one.options, one.states_async_statistics);
    ASSERT_TRUE(refusal) << one.field << " with " << one.layout;
    EXPECT_EQ(refusal->field, one.field) << refusal->reason;
  }
}

TEST(LayoutRules, AllowWhatDiffersInOneThing) {
  for (const Case& one : cases()) {
    const auto refusal =
        refusal_of(one, one.allowed_layout, one.allowed_options, one.allowed_states_async_statistics);
    EXPECT_FALSE(refusal) << one.field << " with " << one.allowed_layout << ": " << refusal->field << " "
                          << refusal->reason;
  }
}

TEST(LayoutRules, EachHasACase) {
  std::set<const LayoutRule*> used;
  for (const Case& one : cases())
    for (const LayoutRule& rule : layout_rules())
      if (rule.why_refused({.options = one.options,
                            .layout = layout::parse_layout(one.layout),
                            .storage = one.storage,
                            .states_async_statistics = one.states_async_statistics,
                            .statistic = one.statistic,
                            .histograms = one.histograms,
                            .writes_samples = one.writes_samples,
                            .device = one.device,
                            .shared_memory = one.shared_memory}))
        used.insert(&rule);
  EXPECT_EQ(used.size(), layout_rules().size());
}

TEST(LayoutRules, AllowEverythingThatNeedsAnUnknownFact) {
  for (const auto algorithm : {shared_memory, tree})
    EXPECT_FALSE(first_refusal({.options = with(algorithm), .layout = layout::parse_layout("dp=2")}));
  EXPECT_FALSE(first_refusal(
      {.options = {}, .layout = layout::parse_layout("dp=2,sync=ps,servers=2,mode=async"), .statistic = {}}));
}

TEST(LayoutRules, NameTheFieldInAnError) {
  const ParallelOptions options = with(ring, kExact);
  try {
    require_allowed({.options = options, .layout = layout::parse_layout("dp=2")});
    FAIL() << "allowed";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("parallel.algorithm is RING"));
  }
}

}  // namespace
}  // namespace lockstep::parallel
