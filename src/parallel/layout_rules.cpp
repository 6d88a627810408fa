#include "parallel/layout_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep::parallel {
namespace {

using Reason = std::optional<std::string>;
using layout::ServerMode;

// As the schema writes them.
constexpr std::string_view kAlgorithms[] = {"AUTOMATIC", "LIBRARY", "RING", "SHARED_MEMORY", "TREE"};

std::string_view algorithm_of(const RunChoice& choice) {
  return kAlgorithms[static_cast<size_t>(choice.options.algorithm)];
}
bool is_reproducible(const RunChoice& choice) {
  return choice.options.reduction == layout::Reduction::reproducible;
}
bool has_servers(const RunChoice& choice) {
  return choice.layout.sync == layout::SyncMethod::parameter_server;
}
bool has_dedicated_servers(const RunChoice& choice) {
  return has_servers(choice) && choice.layout.placement == layout::ServerPlacement::dedicated;
}
bool is_async(const RunChoice& choice) { return choice.layout.mode == ServerMode::asynchronous; }

std::string_view mode_of(const RunChoice& choice) {
  switch (choice.layout.mode) {
    case ServerMode::stale:
      return "mode: STALE";
    case ServerMode::asynchronous:
      return "mode: ASYNC";
    default:
      return "mode: SYNC";
  }
}

/// The same layout, with workers that wait for all others.
std::string nearest_that_waits(const RunChoice& choice) {
  layout::Layout waits = choice.layout;
  if (is_async(choice)) waits.mode = ServerMode::synchronous;
  waits.bound = is_async(choice) ? layout::Layout().bound : 0;
  waits.pushes = 0;
  return fmt::format("the nearest layout that works is '{}'", layout::to_string(waits));
}

// --- How gradients are summed.

Reason sums_in_canonical_order(const RunChoice& choice) {
  const auto algorithm = choice.options.algorithm;
  if (!is_reproducible(choice) ||
      (algorithm != AllReduceAlgorithm::library && algorithm != AllReduceAlgorithm::ring))
    return {};
  return fmt::format(
      "is {}, which sums in another order than REPRODUCIBLE requires; use SHARED_MEMORY or TREE, "
      "remove it, or use parallel.reduction: FAST",
      algorithm_of(choice));
}

Reason sums_parts_for_shards(const RunChoice& choice) {
  const auto algorithm = choice.options.algorithm;
  const bool adds_whole = algorithm == AllReduceAlgorithm::library ||
                          algorithm == AllReduceAlgorithm::shared_memory ||
                          (algorithm == AllReduceAlgorithm::tree && !is_reproducible(choice));
  if (choice.layout.shard != layout::ShardedState::optimizer || !adds_whole) return {};
  return fmt::format(
      "is {}, which sums whole gradients on every worker, but with shard: OPTIMIZER each worker "
      "needs only its part; remove it",
      algorithm_of(choice));
}

Reason workers_sum_themselves(const RunChoice& choice) {
  if (!has_servers(choice) || choice.options.algorithm == AllReduceAlgorithm::automatic) return {};
  return fmt::format(
      "is {}, which is for sums among workers, but with sync: PS servers sum the gradients; "
      "remove it",
      algorithm_of(choice));
}

Reason hosts_sum_their_own_way(const RunChoice& choice) {
  if (choice.layout.aggregate == layout::Aggregation::none || has_servers(choice) ||
      choice.options.algorithm == AllReduceAlgorithm::automatic)
    return {};
  return fmt::format(
      "is {}, but with aggregate: HOST hosts sum in shared memory, and then among themselves; remove "
      "one of the two",
      algorithm_of(choice));
}

Reason workers_share_memory(const RunChoice& choice) {
  if (choice.options.algorithm != AllReduceAlgorithm::shared_memory) return {};
  if (choice.device == device::DeviceKind::cuda)
    return "is SHARED_MEMORY, but GPUs share no memory of their host; remove it";
  if (choice.shared_memory != false || choice.layout.workers() <= 1) return {};
  return fmt::format(
      "is SHARED_MEMORY, but the {} workers do not share one host's memory; start all of them on "
      "one host, or remove it",
      choice.layout.workers());
}

Reason cpus_have_a_tree(const RunChoice& choice) {
  if (choice.options.algorithm != AllReduceAlgorithm::tree || is_reproducible(choice) ||
      choice.device != device::DeviceKind::cpu)
    return {};
  return "is TREE, which on CPUs needs parallel.reduction: REPRODUCIBLE; use LIBRARY, RING or SHARED_MEMORY, "
         "or "
         "remove it";
}

// --- Servers.

constexpr std::string_view kOnlyDedicated =
    "applies only to dedicated servers (sync: PS, placement: DEDICATED); remove it";

Reason threads_have_servers(const RunChoice& choice) {
  if (choice.options.server_threads == ParallelOptions().server_threads || has_dedicated_servers(choice))
    return {};
  return std::string(kOnlyDedicated);
}

Reason servers_can_use_gpus(const RunChoice& choice) {
  if (!choice.options.servers_on_gpus) return {};
  if (!has_dedicated_servers(choice)) return std::string(kOnlyDedicated);
  if (choice.layout.mode != ServerMode::synchronous)
    return fmt::format("is GPU, but with {} servers compute on CPUs; remove it", mode_of(choice));
  if (choice.device && *choice.device != device::DeviceKind::cuda)
    return "is GPU, but workers compute on CPUs; remove it";
  return {};
}

Reason rate_has_pushes(const RunChoice& choice) {
  if (choice.options.async_learning_rate == ParallelOptions().async_learning_rate || is_async(choice))
    return {};
  return "applies only to mode: ASYNC; remove it";
}

Reason statistics_have_an_average(const RunChoice& choice) {
  const bool stated = choice.states_async_statistics;
  if (!is_async(choice)) return stated ? Reason("applies only to mode: ASYNC; remove it") : Reason();
  if (!choice.statistic || stated != choice.statistic->empty()) return {};
  if (stated) return "applies to running statistics, but the model has none; remove it";
  layout::Layout nearest = choice.layout;
  nearest.mode = ServerMode::synchronous;
  nearest.pushes = 0;
  return fmt::format(
      "is required with mode: ASYNC: no worker sees a whole batch, so the config must say how to "
      "average '{}'; set EXPONENTIAL_BY_PUSH (docs/parameter-server.md), or use '{}', whose "
      "statistics are those of each batch",
      *choice.statistic, layout::to_string(nearest));
}

// --- The type in which gradients travel.

bool is_narrow(const RunChoice& choice) { return choice.options.wire != DType::float32; }

Reason pushes_are_float32(const RunChoice& choice) {
  if (!is_narrow(choice) || !choice.layout.has_sessions()) return {};
  return fmt::format("is BFLOAT16, but with {} pushes are float32; use FLOAT32; {}", mode_of(choice),
                     nearest_that_waits(choice));
}

Reason library_adds_the_wire(const RunChoice& choice) {
  if (!is_narrow(choice) || choice.options.algorithm != AllReduceAlgorithm::library ||
      choice.device != device::DeviceKind::cpu)
    return {};
  return "is BFLOAT16, but parallel.algorithm is LIBRARY, and MPI adds no bfloat16; remove one of the two";
}

Reason feedback_has_roundings(const RunChoice& choice) {
  if (!choice.options.error_feedback || is_narrow(choice)) return {};
  return "is true, but with parallel.wire: FLOAT32 nothing is rounded; use BFLOAT16, or remove it";
}

Reason feedback_has_one_scale(const RunChoice& choice) {
  if (!choice.options.error_feedback || choice.storage != DType::float16) return {};
  return "is true, but with precision.compute: FLOAT16 gradients are multiplied by a scale that changes from "
         "step to step, so that what one step loses does not fit the next; use precision.compute: BFLOAT16, "
         "or remove it";
}

/// A variance must not become negative by what an earlier one lost, and statistics are means of
/// micro-batches, which weights' gradients are not: residuals of leaves that are added count otherwise.
Reason feedback_has_no_statistics(const RunChoice& choice) {
  if (!choice.options.error_feedback || !choice.statistic || choice.statistic->empty()) return {};
  return fmt::format(
      "is true, but '{}' is a running statistic, whose means travel with the gradients: what rounding them "
      "loses is not of the next batch; remove it, or use a norm without running statistics",
      *choice.statistic);
}

// --- Updates of whole matrices.

Reason matrices_have_one_owner(const RunChoice& choice) {
  if (!choice.updates_matrices || !has_servers(choice) || choice.layout.servers <= 1 ||
      choice.layout.assign == layout::ServerAssignment::whole)
    return {};
  // With many servers of few parameters another rule may refuse that, too: no layout is promised.
  return "is SHARDED, so that servers may hold parts of a matrix, but muon updates whole matrices; use "
         "assign=whole";
}

Reason matrices_have_one_device(const RunChoice& choice) {
  const bool on_processors = has_dedicated_servers(choice) && !choice.options.servers_on_gpus;
  if (!choice.updates_matrices || !is_reproducible(choice) || !on_processors ||
      choice.device != device::DeviceKind::cuda)
    return {};
  return "is CPU, but products of muon have other bits there than on GPUs, so that REPRODUCIBLE would depend "
         "on "
         "the layout; use GPU, or parallel.reduction: FAST";
}

// --- What workers must meet for, after each step.

Reason results_have_an_order(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || !is_reproducible(choice)) return {};
  return fmt::format(
      "is REPRODUCIBLE, but with {} results depend on the order in which workers arrive; use FAST, "
      "or mode: SYNC{}; {}",
      mode_of(choice), is_async(choice) ? "" : " or bound: 0", nearest_that_waits(choice));
}

Reason workers_agree_on_a_scale(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || choice.storage != DType::float16) return {};
  return fmt::format(
      "is FLOAT16, but with {} workers do not meet after each step to agree on the loss scale; use "
      "BFLOAT16; {}",
      mode_of(choice), nearest_that_waits(choice));
}

Reason hosts_may_wait(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || choice.layout.aggregate == layout::Aggregation::none) return {};
  layout::Layout alone = choice.layout;
  alone.aggregate = layout::Aggregation::none;
  return fmt::format(
      "makes workers on one host wait for each other, but with {} workers never wait for all "
      "others; the nearest layout that works is '{}'",
      mode_of(choice), layout::to_string(alone));
}

Reason library_knows_hosts(const RunChoice& choice) {
  if (choice.layout.aggregate == layout::Aggregation::none || has_servers(choice) ||
      choice.device != device::DeviceKind::cuda)
    return {};
  return "is HOST, but sums among GPUs are NCCL's, which knows itself what hosts they are in; remove it";
}

Reason samples_have_one_model(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || !choice.writes_samples) return {};
  return fmt::format(
      "needs a step at which all parameters are one model's, which layout '{}' does not have; leave "
      "it out, or use mode: SYNC",
      layout::to_string(choice.layout));
}

Reason histograms_have_a_step(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || !choice.histograms) return {};
  return fmt::format(
      "needs a step that all workers make at once, which layout '{}' does not have; leave it out, "
      "or use sync=all_reduce or mode=sync",
      layout::to_string(choice.layout));
}

Reason noise_has_whole_batches(const RunChoice& choice) {
  if (!choice.layout.has_sessions() || !choice.noise_scale) return {};
  return fmt::format(
      "needs gradients of whole batches, which layout '{}' does not have; leave it out, or use "
      "sync=all_reduce or mode=sync",
      layout::to_string(choice.layout));
}

Reason noise_has_small_batches(const RunChoice& choice) {
  if (!choice.noise_scale || choice.largest_micro_batch == 0 ||
      choice.largest_micro_batch < choice.global_batch)
    return {};
  return fmt::format(
      "compares gradients of micro-batches with that of the batch, but a step has one micro-batch, of all "
      "its {} samples; set trainer.micro_batch to {} or less, use more workers, or leave it out",
      choice.global_batch, choice.global_batch / 2);
}

Reason noise_has_whole_gradients(const RunChoice& choice) {
  if (!choice.noise_scale || choice.stages_share_parameters != true) return {};
  return fmt::format(
      "needs whole gradients, but with layout '{}' stages share parameters, and none of them sees the whole "
      "gradient of these; leave it out, or use a layout without stages",
      layout::to_string(choice.layout));
}

// --- Images.

Reason images_are_there(const RunChoice& choice) {
  if (!choice.transforms_on_gpu || choice.reads_images != false) return {};
  return "is GPU, but the model has no input 'image' of three dimensions; set data.transforms_on: CPU";
}

Reason gpus_are_there(const RunChoice& choice) {
  if (!choice.transforms_on_gpu || choice.device != device::DeviceKind::cpu) return {};
  return "is GPU, but workers compute on CPUs; set data.transforms_on: CPU, or use --device cuda";
}

constexpr LayoutRule kRules[] = {
    {"sums_in_canonical_order", "parallel.algorithm", sums_in_canonical_order},
    {"sums_parts_for_shards", "parallel.algorithm", sums_parts_for_shards},
    {"workers_sum_themselves", "parallel.algorithm", workers_sum_themselves},
    {"hosts_sum_their_own_way", "parallel.algorithm", hosts_sum_their_own_way},
    {"workers_share_memory", "parallel.algorithm", workers_share_memory},
    {"cpus_have_a_tree", "parallel.algorithm", cpus_have_a_tree},
    {"threads_have_servers", "parallel.server_threads", threads_have_servers},
    {"servers_can_use_gpus", "parallel.server_device", servers_can_use_gpus},
    {"matrices_have_one_owner", "parallel.assign", matrices_have_one_owner},
    {"matrices_have_one_device", "parallel.server_device", matrices_have_one_device},
    {"rate_has_pushes", "parallel.async_learning_rate", rate_has_pushes},
    {"pushes_are_float32", "parallel.wire", pushes_are_float32},
    {"library_adds_the_wire", "parallel.wire", library_adds_the_wire},
    {"feedback_has_roundings", "parallel.error_feedback", feedback_has_roundings},
    {"feedback_has_one_scale", "parallel.error_feedback", feedback_has_one_scale},
    {"feedback_has_no_statistics", "parallel.error_feedback", feedback_has_no_statistics},
    {"results_have_an_order", "parallel.reduction", results_have_an_order},
    {"workers_agree_on_a_scale", "precision.compute", workers_agree_on_a_scale},
    {"hosts_may_wait", "parallel.aggregate", hosts_may_wait},
    {"library_knows_hosts", "parallel.aggregate", library_knows_hosts},
    {"samples_have_one_model", "trainer.sample", samples_have_one_model},
    {"histograms_have_a_step", "metrics.histogram_every_steps", histograms_have_a_step},
    {"noise_has_whole_batches", "metrics.noise_scale_every_steps", noise_has_whole_batches},
    {"noise_has_small_batches", "metrics.noise_scale_every_steps", noise_has_small_batches},
    {"noise_has_whole_gradients", "metrics.noise_scale_every_steps", noise_has_whole_gradients},
    {"images_are_there", "data.transforms_on", images_are_there},
    {"gpus_are_there", "data.transforms_on", gpus_are_there},
    {"statistics_have_an_average", "parallel.async_statistics", statistics_have_an_average},
};

}  // namespace

bool reads_images(const model::Graph& graph) {
  return std::ranges::any_of(graph.inputs, [&](int input) {
    const model::Value& value = graph.value(input);
    return value.name == "image" && value.spec.shape.rank() == 3;
  });
}

std::span<const LayoutRule> layout_rules() { return kRules; }

std::optional<Refusal> first_refusal(const RunChoice& choice) {
  for (const LayoutRule& rule : kRules)
    if (auto reason = rule.why_refused(choice))
      return Refusal{rule.name, std::string(rule.field), std::move(*reason)};
  return {};
}

void require_allowed(const RunChoice& choice) {
  if (const auto refusal = first_refusal(choice))
    throw ConfigError(fmt::format("{} {}", refusal->field, refusal->reason));
}

}  // namespace lockstep::parallel
