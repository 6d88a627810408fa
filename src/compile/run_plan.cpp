#include "compile/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "layout/pipeline_schedule.h"
#include "lockstep/error.h"
#include "model/pieces.h"
#include "model/shared_graph.h"
#include "ops/replica_kernel.h"
#include "parallel/host_sync.h"
#include "parallel/layout_rules.h"

namespace lockstep::compile {
namespace {

/// How many elements of a tensor kernels can count.
int64_t most_elements(device::DeviceKind device) {
  return (int64_t{1} << (device == device::DeviceKind::cuda ? 32 : 31)) - 1;
}

/// Each takes up to 24 microseconds and 2 KiB to compile, place and prove (docs/results.md): half a minute
/// and 2 GiB for a step of so many. Progress tells instructions apart up to 2^24.
constexpr int64_t kMostInstructions = 1'000'000;
void check_extent(const model::Graph& graph, const model::Partition& partition,
                  const layout::BatchDivision& division, const layout::Layout& layout,
                  device::DeviceKind device) {
  std::vector<int64_t> segments(static_cast<size_t>(layout.pp), 0);  // by stage
  for (const int piece : partition.pieces) ++nth(segments, piece % layout.pp);
  // Load, forwards, backwards, which may be halves and recompute; of a stage also what it gets and sends.
  const int64_t passes = layout.pp == 1 && layout.recompute == layout::Recompute::none ? 2 : 4;
  const int64_t each = passes * *std::ranges::max_element(segments) + (layout.pp > 1 ? 5 : 1);
  const int64_t micro_batches = division.most_micro_batches();
  if (each > kMostInstructions)
    throw ConfigError(
        fmt::format("a model of {} segments takes more than {} instructions for each micro-batch; raise "
                    "parallel.bucket_bytes, so that there are fewer segments, or use fewer layers",
                    partition.segments.size(), kMostInstructions));
  if (micro_batches > kMostInstructions / each)
    throw ConfigError(fmt::format(
        "a step of {} micro-batches per worker over {} segments takes more than {} instructions; raise "
        "trainer.micro_batch from {} or use more workers, for at most {} micro-batches each",
        micro_batches, partition.segments.size(), kMostInstructions, division.micro_batch,
        kMostInstructions / each));
  const int64_t most = most_elements(device);
  for (const auto& value : graph.values)
    if (const int64_t count = value.spec.shape.count(); count > 0 && division.micro_batch > most / count)
      throw ConfigError(fmt::format(
          "'{}' has {} elements in a sample, so a micro-batch of {} samples has more than {}; {}make the "
          "model "
          "smaller",
          value.name, count, division.micro_batch, most,
          most < count ? "" : fmt::format("set trainer.micro_batch to {} or less, or ", most / count)));
}

/// Whether the profile, if there is one, is of this run.
void require_own_profile(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                         device::DeviceKind device, int64_t micro_batch) {
  const auto& profile = parallel.profile;
  if (!profile) return;
  model::measured_times(graph, micro_batch, *profile);
  if (device == device::DeviceKind::cpu && profile->intra_op_threads != parallel.intra_op_threads)
    throw ConfigError(
        fmt::format("profile {}: was measured with parallel.intra_op_threads: {}, but is used with {}; "
                    "measure this config: lockstep profile CONFIG --out FILE",
                    profile->source, profile->intra_op_threads, parallel.intra_op_threads));
  if (profile->device == device::name_of(device)) return;
  throw ConfigError(
      fmt::format("profile {}: was measured on {}, but workers compute on {}; measure there: lockstep "
                  "profile CONFIG --out FILE",
                  profile->source, profile->device, device::name_of(device)));
}

/// Owners' parts of a bucket lie between borders of 256 KiB, or of parameters (layout::Ownership): the more
/// there are for each owner, the less the parts differ. Of a stage there are about eight buckets all the
/// same, so that their communication overlaps with backward. What is pushed as a whole, in sessions or as a
/// sum of a host's workers, gains nothing: of a larger one the two directions of a link are used in turns for
/// longer. Nor does what is computed again grow, which is a bucket's layers at a time. On GPUs a sum takes
/// tens of microseconds whatever its size, and 32 MiB some hundred between GPUs of a host.
int64_t bucket_bytes_of(const parallel::ParallelOptions& parallel, const model::Graph& graph, int owners,
                        device::DeviceKind device) {
  constexpr int64_t kBytesOfOwner = 2 << 20, kBytesOnGpus = 32 << 20, kLeastBuckets = 8;
  const layout::Layout& layout = parallel.layout;
  if (parallel.bucket_bytes) return *parallel.bucket_bytes;
  const int64_t wanted = std::max(owners > 1 ? owners * kBytesOfOwner : 0,
                                  device == device::DeviceKind::cuda ? kBytesOnGpus : 0);
  if (wanted == 0 || layout.has_sessions() || layout.aggregate != layout::Aggregation::none ||
      layout.recompute != layout::Recompute::none)
    return parallel::kBucketBytes;
  int64_t bytes = 0;  // of a stage
  for (const auto& parameter : graph.parameters)
    bytes += parameter.spec.shape.count() * static_cast<int64_t>(sizeof(float)) / layout.pp;
  return std::max(parallel::kBucketBytes, std::min(wanted, bytes / kLeastBuckets));
}

model::Partition make_partition(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                                int64_t bucket_bytes, int64_t micro_batch) {
  const int pieces = parallel.layout.pieces();
  const int stated = static_cast<int>(parallel.cuts.size());
  if (stated > 0 && stated != pieces - 1)
    throw ConfigError(
        fmt::format("parallel.pipeline.cuts names {} layer{}, which make {} pieces of the model, and layout "
                    "'{}' has {}; {}",
                    stated, stated == 1 ? "" : "s", stated + 1, layout::to_string(parallel.layout), pieces,
                    pieces == 1 ? "remove it" : fmt::format("name {}, or remove it", pieces - 1)));
  if (pieces == 1) return model::make_partition(graph, bucket_bytes);
  if (stated > 0) return model::make_partition(graph, bucket_bytes, model::cut_before(graph, parallel.cuts));
  const std::vector<double> times = model::group_times(graph, times_of(graph, parallel, micro_batch));
  return model::make_partition(graph, bucket_bytes, model::divide_into_pieces(graph, times, pieces));
}

/// Each half of backward writes one stretch of a bucket.
void require_halves(const model::Partition& partition, const layout::Layout& layout) {
  if (layout.pp == 1 || layout.schedule != layout::PipelineSchedule::zero_bubble) return;
  for (const auto& bucket : partition.buckets)
    if (bucket.split_begin > 0 && bucket.split_end < bucket.size_bytes)
      throw ConfigError(
          "schedule=zero_bubble: a segment of the model has two sorts of parameters, its own and those of a "
          "layer before it, whose gradients are computed with those of its inputs, such as two uses of an "
          "embedding; use schedule=1f1b");
}

layout::OwnershipOptions ownership_options(const CompileOptions& of, const layout::Layout& layout) {
  const parallel::ParallelOptions& parallel = of.parallel;
  layout::OwnershipOptions options{
      .workers = layout.workers(), .stages = layout.pp, .state_slots = of.state_slots};
  options.whole = !of.matrices.empty();
  // Along the canonical tree each use is summed by itself, wherever it is computed.
  options.ties_first = parallel.reduction == layout::Reduction::fast || layout.has_sessions();
  if (layout.shard == layout::ShardedState::optimizer) options.owners = {0, layout.dp};
  if (layout.sync == layout::SyncMethod::parameter_server) {
    const bool colocated = layout.placement == layout::ServerPlacement::colocated;
    options.owners = colocated ? layout::RankRange{0, layout.servers / layout.pp}
                               : layout::RankRange{layout.workers(), layout.servers};
    options.whole |= layout.assign == layout::ServerAssignment::whole;
    // Of the others any may be lost, also while a checkpoint is written.
    if (layout.mode == layout::ServerMode::asynchronous) options.savers = 1;
  }
  return options;
}

/// Programs know of hosts where they sum on them.
std::vector<int> hosts_of(const layout::Layout& layout, const CompileFacts& facts) {
  if (layout.aggregate == layout::Aggregation::none) return {};
  if (facts.hosts.empty()) return std::vector<int>(static_cast<size_t>(facts.world_size), 0);
  ensure(static_cast<int>(facts.hosts.size()) == facts.world_size, "every rank has a host");
  return facts.hosts;
}

/// Sums within hosts and then across them have the canonical tree's order only if ranks are numbered so.
void require_hosts_follow_tree(const RunPlan& plan) {
  const layout::Layout& layout = plan.layout();
  if (plan.hosts.empty() || layout.sync == layout::SyncMethod::parameter_server ||
      plan.options.parallel.reduction != layout::Reduction::reproducible)
    return;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const parallel::HostWorkers hosts = parallel::workers_by_host(plan.hosts, stage * layout.dp, layout.dp);
    if (!parallel::sums_across_hosts(hosts) || parallel::hosts_follow_tree(hosts, plan.division)) continue;
    layout::Layout nearest = layout;
    nearest.aggregate = layout::Aggregation::none;
    std::vector<std::string> numbers;
    for (const auto& host : hosts) numbers.push_back(fmt::format("{}", fmt::join(host, " ")));
    throw ConfigError(fmt::format(
        "parallel.aggregate is HOST, but the workers of {} hosts ({}) do not add up as the canonical tree of "
        "REPRODUCIBLE does; number them host by host, a power of two on each host but the last, and divide "
        "{} "
        "virtual replicas evenly among them; the nearest layout that works is '{}'",
        hosts.size(), fmt::join(numbers, " | "), plan.division.leaves, layout::to_string(nearest)));
  }
}

/// Of workers that serve there are as many of each stage.
int servers_at_once(const layout::Layout& layout) {
  return layout.placement == layout::ServerPlacement::colocated ? layout.pp : 1;
}

/// With so many servers: those that own nothing.
int idle_servers(const model::Graph& graph, const parallel::ParallelOptions& parallel, int64_t micro_batch,
                 layout::OwnershipOptions tried, int servers, device::DeviceKind device) {
  tried.owners.count = servers / servers_at_once(parallel.layout);
  // Buckets are of another size with another number of servers.
  const model::Partition partition = make_partition(
      graph, parallel, bucket_bytes_of(parallel, graph, tried.owners.count, device), micro_batch);
  const layout::Ownership ownership(graph, partition, tried);
  int idle = 0;
  for (int rank = 0; rank < ownership.ranks(); ++rank)
    idle += ownership.owns(rank) && ownership.owned_bytes(rank) == 0 ? 1 : 0;
  return idle;
}

/// The most servers, up to those of the layout, that all own something.
int servers_with_work(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                      int64_t micro_batch, const layout::OwnershipOptions& options,
                      device::DeviceKind device) {
  const int each = servers_at_once(parallel.layout);
  int servers = parallel.layout.servers;
  while (servers > each && idle_servers(graph, parallel, micro_batch, options, servers, device) > 0)
    servers -= each;
  return servers;
}

/// A server that owns nothing would be a process for nothing.
void require_work_for_servers(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                              int64_t micro_batch, const layout::OwnershipOptions& options,
                              device::DeviceKind device) {
  const layout::Layout& layout = parallel.layout;
  if (layout.sync != layout::SyncMethod::parameter_server) return;
  // A worker of each stage is no process for nothing, even where that has no parameters.
  layout::Layout nearest = layout;
  nearest.servers = servers_with_work(graph, parallel, micro_batch, options, device);
  if (nearest.servers == layout.servers) return;
  throw ConfigError(fmt::format(
      "layout '{}': {} of the {} servers would own nothing, since {} are divided; the nearest that works is "
      "'{}'",
      layout::to_string(layout), idle_servers(graph, parallel, micro_batch, options, layout.servers, device),
      layout.servers,
      options.whole ? "whole parameters, in runs of a bucket," : "ranges of 65,536 elements of a parameter",
      layout::to_string(nearest)));
}

/// In sessions servers update when pushes come, and ask nobody for sums of squares.
void require_whole_parameters(const RunPlan& plan) {
  const parallel::ParallelOptions& parallel = plan.options.parallel;
  if (!plan.options.measures.any() || !parallel.layout.has_sessions()) return;
  const layout::Ownership ownership(plan.graph, plan.partition, plan.owning);
  const auto holds_a_part = [&](int parameter) {
    const auto& spec = plan.graph.parameter(parameter).spec;
    bool is_cut = false;
    for (int rank = 0; rank < ownership.ranks() && spec.role == ops::ParameterRole::weight; ++rank) {
      const tensor::Part owned = ownership.owns(rank) ? ownership.owned(parameter, rank) : tensor::Part();
      is_cut = is_cut || (!owned.empty() && !owned.is_whole(spec.shape.count()));
    }
    return is_cut;
  };
  for (int p = 0; p < static_cast<int>(plan.graph.parameters.size()); ++p) {
    if (!holds_a_part(p)) continue;
    layout::Layout nearest = parallel.layout;
    nearest.assign = layout::ServerAssignment::whole;
    layout::OwnershipOptions owning = plan.owning;
    owning.whole = true;
    nearest.servers =
        servers_with_work(plan.graph, parallel, plan.division.micro_batch, owning, plan.facts.device);
    throw ConfigError(fmt::format(
        "layout '{}': the optimizer needs norms of whole parameters, and servers that do not "
        "wait for each other hold parts of '{}'; the nearest that works is '{}'",
        layout::to_string(parallel.layout), plan.graph.parameter(p).name, layout::to_string(nearest)));
  }
}

/// Programs do not depend on histograms, samples of text, or how servers average statistics: the config's own
/// check looks at those.
parallel::RunChoice choice_of(const RunPlan& plan) {
  return {.options = plan.options.parallel,
          .layout = plan.layout(),
          .storage = plan.options.storage,
          .updates_matrices = !plan.options.matrices.empty(),
          .transforms_on_gpu = plan.options.packed_training.has_value(),
          .reads_images = parallel::reads_images(plan.graph),
          .device = plan.facts.device,
          .shared_memory = plan.facts.shared_memory};
}

}  // namespace

std::vector<model::NodeTime> times_of(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                                      int64_t micro_batch) {
  return parallel.profile ? model::measured_times(graph, micro_batch, *parallel.profile)
                          : model::estimated_times(graph, micro_batch);
}

layout::BatchDivision divide_batch(const CompileOptions& options, const layout::Layout& layout,
                                   const model::Graph& graph, device::DeviceKind device) {
  const parallel::ParallelOptions& parallel = options.parallel;
  const layout::BatchDivision division =
      layout::divide_batch(options.global_batch, options.micro_batch, options.virtual_replicas,
                           parallel.reduction, layout.dp, layout.pushes);
  const bool states = options.micro_batch > 0, on_gpu = device == device::DeviceKind::cuda;
  // Kernels that fold several leaves round none of their sums, as a narrower wire demands of every node.
  if (parallel.reduction != layout::Reduction::reproducible || parallel.wire != DType::float32 ||
      (on_gpu && (!states || division.leaf_samples % ops::kReplicaSamplesOnGpu != 0)))
    return division;
  constexpr int64_t kCachedElements = (int64_t{1} << 20) / sizeof(float);
  int64_t most = states ? options.micro_batch : options.global_batch;
  if (on_gpu) most = std::min(most, ops::kMostReplicasOnGpu * division.leaf_samples);
  for (const auto& value : graph.values)
    most = std::min(most, (states ? most_elements(device) : kCachedElements) /
                              std::max<int64_t>(1, value.spec.shape.count()));
  return layout::join_leaves(division, most, layout.pp);
}

RunPlan plan_run(const CompileOptions& options, const CompileFacts& facts) {
  RunPlan plan{
      .options = options, .facts = facts, .graph = model::stored_as(*options.graph, options.storage)};
  parallel::ParallelOptions& parallel = plan.options.parallel;
  parallel.layout = layout::resolve(parallel.layout, facts.world_size);
  layout::require_available(parallel.layout);
  parallel::require_allowed(choice_of(plan));
  plan.division = divide_batch(plan.options, parallel.layout, plan.graph, facts.device);
  require_own_profile(plan.graph, parallel, facts.device, plan.division.micro_batch);
  plan.owning = ownership_options(plan.options, parallel.layout);
  plan.partition = make_partition(
      plan.graph, parallel, bucket_bytes_of(parallel, plan.graph, plan.owning.owners.count, facts.device),
      plan.division.micro_batch);
  require_halves(plan.partition, parallel.layout);
  check_extent(plan.graph, plan.partition, plan.division, parallel.layout, facts.device);
  // Throws if the schedule cannot take the micro-batches of one of the replicas.
  for (const int replica : {0, parallel.layout.dp - 1})
    layout::pipeline_schedule(
        layout::pipeline_shape(parallel.layout, plan.division.micro_batches_of(replica)), 0);
  require_work_for_servers(plan.graph, parallel, plan.division.micro_batch, plan.owning, facts.device);
  require_whole_parameters(plan);
  if (plan.options.measures_noise) require_noise(plan);
  plan.owning.reversed = plan.owning.owners == layout::RankRange{0, parallel.layout.dp} &&
                         parallel.reduction == layout::Reduction::reproducible &&
                         plan.division.folds_by_halving;
  plan.hosts = hosts_of(parallel.layout, facts);
  require_hosts_follow_tree(plan);
  return plan;
}

void require_noise(const RunPlan& plan) {
  parallel::RunChoice choice = choice_of(plan);
  choice.noise_scale = true;
  choice.global_batch = plan.division.global_batch;
  choice.largest_micro_batch = plan.division.micro_batch;
  choice.stages_share_parameters = layout::Ownership(plan.graph, plan.partition, plan.owning).ties_stages();
  parallel::require_allowed(choice);
}

CompileFacts planned_facts(int processes, int hosts, device::DeviceKind device) {
  CompileFacts facts{
      .world_size = processes, .shared_memory = processes > 1 && hosts == 1, .hosts = {}, .device = device};
  for (int64_t rank = 0; rank < processes; ++rank)
    facts.hosts.push_back(static_cast<int>(rank * hosts / processes));
  return facts;
}

void require_plan(const CompileOptions& options) {
  const auto refusal = [&](int replicas, device::DeviceKind device) -> std::string {
    CompileOptions stated = options;
    stated.parallel.layout.dp = replicas;
    try {
      plan_run(stated, planned_facts(stated.parallel.layout.world_size(), 1, device));
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  const layout::Layout& layout = options.parallel.layout;
  const bool serve = layout.sync == layout::SyncMethod::parameter_server &&
                     layout.placement == layout::ServerPlacement::colocated;
  const int least = serve ? std::max(1, (layout.servers + layout.pp - 1) / layout.pp) : 1;
  std::vector<int> tried;
  for (const int more : {0, 1, 2, 3, 5, 7, 15, 31, 63, 127, 255}) tried.push_back(least + more);
  if (layout.dp > 0) tried = {layout.dp};
  std::string message;
  for (const int replicas : tried) {
    const std::string on_cpus = refusal(replicas, device::DeviceKind::cpu);
    if (on_cpus.empty()) return;
    const std::string on_gpus = refusal(replicas, device::DeviceKind::cuda);
    if (on_gpus.empty()) return;
    if (message.empty())
      message = on_cpus == on_gpus ? on_cpus : fmt::format("on CPUs: {}; on GPUs: {}", on_cpus, on_gpus);
  }
  throw ConfigError(message);
}

}  // namespace lockstep::compile
