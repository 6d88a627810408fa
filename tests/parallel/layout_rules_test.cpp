#include "parallel/layout_rules.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::parallel {
namespace {

/// A choice that the rule refuses, and one that differs in little and is allowed.
struct RuleCase {
  std::string rule;
  std::string layout, allowed_layout;
  ParallelOptions options, allowed_options;
  // Beside the options, for both.
  DType storage = DType::float32;
  bool states_async_statistics = false;
  bool allowed_states_async_statistics = false;
  std::optional<std::string> statistic = "";
  bool noise_scale = false, histograms = false, writes_samples = false, updates_matrices = false;
  int64_t largest_micro_batch = 0, allowed_largest_micro_batch = 0;  // of a batch of 8
  std::optional<bool> stages_share_parameters = {}, allowed_stages_share_parameters = {};
  bool transforms_on_gpu = false;
  std::optional<bool> reads_images = {}, allowed_reads_images = {};
  std::optional<device::DeviceKind> device = {}, allowed_device = {};  // allowed: if it is another
  std::optional<bool> shared_memory = {};
};

ParallelOptions with(AllReduceAlgorithm algorithm, layout::Reduction reduction = layout::Reduction::fast) {
  return {.reduction = reduction, .algorithm = algorithm};
}

constexpr auto kExact = layout::Reduction::reproducible;
constexpr auto kCpu = device::DeviceKind::cpu;
constexpr auto kGpu = device::DeviceKind::cuda;
using enum AllReduceAlgorithm;

std::vector<RuleCase> cases() {
  const std::string servers = "dp=2,sync=ps,servers=2", stale = servers + ",mode=stale,bound=2",
                    async = servers + ",mode=async";
  return {
      {"sums_in_canonical_order", "dp=2", "dp=2", with(ring, kExact), with(ring)},
      {"sums_in_canonical_order", "dp=2", "dp=2", with(library, kExact), with(tree, kExact)},
      {"sums_parts_for_shards", "dp=2,shard=optimizer", "dp=2", with(library), with(library)},
      {"sums_parts_for_shards", "dp=2,shard=optimizer", "dp=2,shard=optimizer", with(shared_memory),
       with(ring)},
      {"sums_parts_for_shards", "dp=2,shard=optimizer", "dp=2,shard=optimizer", with(tree),
       with(tree, kExact)},
      {"workers_sum_themselves", servers, "dp=2", with(ring), with(ring)},
      {"hosts_sum_their_own_way", "dp=2,aggregate=host", "dp=2", with(ring), with(ring)},
      {.rule = "workers_share_memory",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = with(shared_memory),
       .allowed_options = with(automatic),
       .device = kGpu,
       .shared_memory = true},
      {.rule = "workers_share_memory",
       .layout = "dp=2",
       .allowed_layout = "dp=1",
       .options = with(shared_memory),
       .allowed_options = with(shared_memory),
       .device = kCpu,
       .shared_memory = false},
      {.rule = "workers_share_memory",
       .layout = "dp=1,pp=2",
       .allowed_layout = "dp=1",
       .options = with(shared_memory),
       .allowed_options = with(shared_memory),
       .device = kCpu,
       .shared_memory = false},
      {.rule = "cpus_have_a_tree",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = with(tree),
       .allowed_options = with(tree, kExact),
       .device = kCpu,
       .shared_memory = true},
      {"threads_have_servers",
       servers + ",placement=colocated",
       servers,
       {.server_threads = 2},
       {.server_threads = 2}},
      {"servers_can_use_gpus",
       servers + ",placement=colocated",
       servers,
       {.servers_on_gpus = true},
       {.servers_on_gpus = true}},
      {"servers_can_use_gpus", stale, servers, {.servers_on_gpus = true}, {.servers_on_gpus = true}},
      {.rule = "servers_can_use_gpus",
       .layout = servers,
       .allowed_layout = servers,
       .options = {.servers_on_gpus = true},
       .allowed_options = {},
       .device = kCpu},
      {.rule = "matrices_have_one_owner",
       .layout = servers,
       .allowed_layout = servers + ",assign=whole",
       .updates_matrices = true},
      {.rule = "matrices_have_one_owner",
       .layout = async,
       .allowed_layout = "dp=2,sync=ps,servers=1,mode=async",
       .updates_matrices = true},
      {.rule = "matrices_have_one_device",
       .layout = "dp=2,sync=ps",
       .allowed_layout = "dp=2,sync=ps,placement=colocated",
       .options = with(automatic, kExact),
       .allowed_options = with(automatic, kExact),
       .updates_matrices = true,
       .device = kGpu},
      {.rule = "matrices_have_one_device",
       .layout = "dp=2,sync=ps",
       .allowed_layout = "dp=2,sync=ps",
       .options = with(automatic, kExact),
       .allowed_options = {.reduction = kExact, .servers_on_gpus = true},
       .updates_matrices = true,
       .device = kGpu},
      {"rate_has_pushes",
       stale,
       async,
       {.async_learning_rate = AsyncLearningRate::as_stated},
       {.async_learning_rate = AsyncLearningRate::as_stated}},
      {"pushes_are_float32", stale, servers, {.wire = DType::bfloat16}, {.wire = DType::bfloat16}},
      {"pushes_are_float32", async, servers, {.wire = DType::bfloat16}, {.wire = DType::bfloat16}},
      {.rule = "library_adds_the_wire",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = {.algorithm = library, .wire = DType::bfloat16},
       .allowed_options = {.algorithm = ring, .wire = DType::bfloat16},
       .device = kCpu},
      {"feedback_has_roundings",
       "dp=2",
       "dp=2",
       {.error_feedback = true},
       {.wire = DType::bfloat16, .error_feedback = true}},
      {.rule = "feedback_has_one_scale",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = {.wire = DType::bfloat16, .error_feedback = true},
       .allowed_options = {.wire = DType::bfloat16},
       .storage = DType::float16},
      {.rule = "feedback_has_no_statistics",
       .layout = "dp=2",
       .allowed_layout = "dp=2",
       .options = {.wire = DType::bfloat16, .error_feedback = true},
       .allowed_options = {.wire = DType::bfloat16},
       .statistic = "bn.running_mean"},
      {"pushes_are_float32",
       stale,
       servers,
       {.wire = DType::bfloat16, .error_feedback = true},
       {.wire = DType::bfloat16, .error_feedback = true}},
      {"results_have_an_order", stale, servers + ",mode=stale,bound=0", with(automatic, kExact),
       with(automatic, kExact)},
      {.rule = "workers_agree_on_a_scale",
       .layout = async,
       .allowed_layout = servers,
       .storage = DType::float16},
      {"hosts_may_wait", stale + ",aggregate=host", servers + ",aggregate=host", {}, {}},
      {.rule = "library_knows_hosts",
       .layout = "dp=2,aggregate=host",
       .allowed_layout = "dp=2",
       .device = kGpu},
      {.rule = "samples_have_one_model", .layout = stale, .allowed_layout = servers, .writes_samples = true},
      {.rule = "noise_has_whole_batches", .layout = async, .allowed_layout = servers, .noise_scale = true},
      {.rule = "noise_has_small_batches",
       .layout = "dp=1",
       .allowed_layout = "dp=1",
       .noise_scale = true,
       .largest_micro_batch = 8,
       .allowed_largest_micro_batch = 4},
      {.rule = "noise_has_whole_gradients",
       .layout = "dp=1,pp=2",
       .allowed_layout = "dp=1,pp=2",
       .noise_scale = true,
       .stages_share_parameters = true,
       .allowed_stages_share_parameters = false},
      {.rule = "images_are_there",
       .layout = "dp=1",
       .allowed_layout = "dp=1",
       .transforms_on_gpu = true,
       .reads_images = false,
       .allowed_reads_images = true},
      {.rule = "gpus_are_there",
       .layout = "dp=1",
       .allowed_layout = "dp=1",
       .transforms_on_gpu = true,
       .device = kCpu,
       .allowed_device = kGpu},
      {.rule = "histograms_have_a_step", .layout = async, .allowed_layout = servers, .histograms = true},
      {.rule = "statistics_have_an_average",
       .layout = async,
       .allowed_layout = servers,
       .statistic = "norm.mean"},
      {.rule = "statistics_have_an_average",
       .layout = servers,
       .allowed_layout = async,
       .states_async_statistics = true,
       .allowed_states_async_statistics = true,
       .statistic = "norm.mean"},
      {.rule = "statistics_have_an_average",
       .layout = async,
       .allowed_layout = async,
       .states_async_statistics = true,
       .statistic = ""},
  };
}

std::optional<Refusal> refusal_of(const RuleCase& one, bool allowed) {
  return first_refusal(
      {.options = allowed ? one.allowed_options : one.options,
       .layout = layout::parse_layout(allowed ? one.allowed_layout : one.layout),
       .storage = one.storage,
       .states_async_statistics = allowed ? one.allowed_states_async_statistics : one.states_async_statistics,
       .statistic = one.statistic,
       .updates_matrices = one.updates_matrices,
       .noise_scale = one.noise_scale,
       .global_batch = 8,
       .largest_micro_batch = allowed ? one.allowed_largest_micro_batch : one.largest_micro_batch,
       .stages_share_parameters = allowed ? one.allowed_stages_share_parameters : one.stages_share_parameters,
       .transforms_on_gpu = one.transforms_on_gpu,
       .reads_images = allowed ? one.allowed_reads_images : one.reads_images,
       .histograms = one.histograms,
       .writes_samples = one.writes_samples,
       .device = allowed && one.allowed_device ? one.allowed_device : one.device,
       .shared_memory = one.shared_memory});
}

TEST(LayoutRules, RefuseWhatDoesNotFit) {
  for (const RuleCase& one : cases()) {
    const auto refusal = refusal_of(one, /*allowed=*/false);
    ASSERT_TRUE(refusal) << one.rule << " with " << one.layout;
    EXPECT_EQ(refusal->rule, one.rule) << refusal->field << refusal->reason;
  }
}

TEST(LayoutRules, AllowWhatDiffersInOneThing) {
  for (const RuleCase& one : cases()) {
    const auto refusal = refusal_of(one, /*allowed=*/true);
    EXPECT_FALSE(refusal) << one.rule << " with " << one.allowed_layout << ": " << refusal->field << " "
                          << refusal->reason;
  }
}

TEST(LayoutRules, EachHasACase) {
  std::set<std::string, std::less<>> with_cases, all;
  for (const RuleCase& one : cases()) with_cases.insert(one.rule);
  for (const LayoutRule& rule : layout_rules()) all.emplace(rule.name);
  EXPECT_EQ(with_cases, all);
  EXPECT_EQ(all.size(), layout_rules().size()) << "two rules of one name";
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
