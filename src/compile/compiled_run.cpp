#include "compile/compiled_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/ensure.h"
#include "base/hash.h"
#include "layout/pipeline_schedule.h"
#include "lockstep/error.h"
#include "model/pieces.h"
#include "ops/replica_kernel.h"
#include "parallel/rank_program.h"
#include "parallel/session_programs.h"
#include "parallel/step_programs.h"
#include "proof/call_proof.h"
#include "proof/checker.h"
#include "proof/model_flow.h"

namespace lockstep::compile {
namespace {

program::ModelCode::Options code_options(const CompileOptions& options, const layout::BatchDivision& division,
                                         const model::Graph& graph, device::DeviceKind device,
                                         bool training) {
  const std::vector<int> sizes = division.sizes();  // the largest first
  return {.device = device,
          .micro_batch = division.micro_batch,
          .virtual_replicas = division.leaves_at_once,
          .fewer_replicas = {sizes.begin() + 1, sizes.end()},
          .training = training,
          .intra_op_threads = options.parallel.intra_op_threads,
          .loss_weight = 1.0 / (static_cast<double>(division.global_batch) *
                                static_cast<double>(graph.loss_positions())),
          .tf32 = options.tf32,
          .reproducible = options.parallel.reduction == layout::Reduction::reproducible,
          .fuse_gelu = options.fused_gelu,
          .repeats = training && options.parallel.layout.recompute == layout::Recompute::selective};
}

/// How many elements of a tensor kernels can count.
int64_t most_elements(device::DeviceKind device) {
  return (int64_t{1} << (device == device::DeviceKind::cuda ? 32 : 31)) - 1;
}

/// Dependencies, then places; plan_memory adds the dependencies that sharing of places makes necessary.
program::MemoryPlan finish_program(program::Program& program) {
  program::derive_dependencies(program);
  return program::plan_memory(program);
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
          "'{}' has {} elements in a sample, so a micro-batch of {} samples has more than {}; set "
          "trainer.micro_batch to {} or less, or make the model smaller",
          value.name, count, division.micro_batch, most, most / count));
}

std::vector<model::NodeTime> times_of(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                                      int64_t micro_batch) {
  return parallel.profile ? model::measured_times(graph, micro_batch, *parallel.profile)
                          : model::estimated_times(graph, micro_batch);
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

uint64_t hash_all(uint64_t hash, std::initializer_list<int64_t> values) {
  for (const int64_t value : values) hash = hash_combine(hash, static_cast<uint64_t>(value));
  return hash;
}

/// How the model is cut. The rest of a partition follows from the graph and this.
uint64_t hash_of(const model::Partition& partition) {
  uint64_t hash = 0;
  for (const auto& segment : partition.segments)
    hash = hash_all(hash, {segment.first_node, segment.last_node});
  for (const int piece : partition.pieces) hash = hash_all(hash, {piece});
  for (const auto& bucket : partition.buckets) {
    hash = hash_all(hash, {bucket.size_bytes, bucket.owned_bytes, bucket.held_bytes});
    for (const auto& entry : bucket.frozen)
      hash = hash_all(hash, {entry.parameter, entry.use, entry.offset_bytes});
    for (const auto& entry : bucket.entries)
      hash = hash_all(hash, {entry.parameter, entry.use, entry.offset_bytes, entry.count});
  }
  return hash;
}

/// What kernels need is told by libraries, which may ask the processor: it is a fact of the rank, and so is
/// hashed.
uint64_t hash_of(const program::ModelCode& code, const model::Partition& partition) {
  uint64_t hash = 0;
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    const auto& face = code.segment(s);
    hash = hash_all(hash, {face.stash_bytes, face.forward_temporary_bytes, face.backward_temporary_bytes});
  }
  return hash;
}

layout::OwnershipOptions ownership_options(const parallel::ParallelOptions& parallel, int state_slots) {
  const layout::Layout& layout = parallel.layout;
  layout::OwnershipOptions options{
      .workers = layout.workers(), .stages = layout.pp, .state_slots = state_slots};
  // Along the canonical tree each use is summed by itself, wherever it is computed.
  options.ties_first = parallel.reduction == layout::Reduction::fast || layout.has_sessions();
  if (layout.shard == layout::ShardedState::optimizer) options.owners = {0, layout.dp};
  if (layout.sync == layout::SyncMethod::parameter_server) {
    const bool colocated = layout.placement == layout::ServerPlacement::colocated;
    options.owners = colocated ? layout::RankRange{0, layout.servers / layout.pp}
                               : layout::RankRange{layout.workers(), layout.servers};
    options.whole = layout.assign == layout::ServerAssignment::whole;
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

/// A server that owns nothing would be a process for nothing.
void require_work_for_servers(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                              int64_t micro_batch, const layout::OwnershipOptions& options,
                              device::DeviceKind device) {
  const layout::Layout& layout = parallel.layout;
  if (layout.sync != layout::SyncMethod::parameter_server) return;
  // Of workers that serve as many of each stage.
  const int each = layout.placement == layout::ServerPlacement::colocated ? layout.pp : 1;
  const auto idle_with = [&](int servers) {
    layout::OwnershipOptions tried = options;
    tried.owners.count = servers / each;
    // Buckets are of another size with another number of servers.
    const model::Partition partition = make_partition(
        graph, parallel, bucket_bytes_of(parallel, graph, tried.owners.count, device), micro_batch);
    const layout::Ownership ownership(graph, partition, tried);
    int idle = 0;
    for (int rank = 0; rank < ownership.ranks(); ++rank)
      idle += ownership.owns(rank) && ownership.owned_bytes(rank) == 0 ? 1 : 0;
    return idle;
  };
  const int idle = idle_with(layout.servers);
  // A worker of each stage is no process for nothing, even where that has no parameters.
  if (idle == 0 || layout.servers == each) return;
  layout::Layout nearest = layout;
  do nearest.servers -= each;
  while (nearest.servers > each && idle_with(nearest.servers) > 0);
  throw ConfigError(fmt::format(
      "layout '{}': {} of the {} servers would own nothing, since {} are divided; the nearest that works is "
      "'{}'",
      layout::to_string(layout), idle, layout.servers,
      options.whole ? "whole parameters, in runs of a bucket," : "ranges of 65,536 elements of a parameter",
      layout::to_string(nearest)));
}

/// In sessions servers update when pushes come, and ask nobody for sums of squares.
void require_whole_parameters(const parallel::ParallelOptions& parallel, const layout::Measures& measures,
                              const layout::OwnershipOptions& owning) {
  if (!measures.any() || !parallel.layout.has_sessions() || owning.whole || owning.owners.count <= 1) return;
  layout::Layout nearest = parallel.layout;
  nearest.assign = layout::ServerAssignment::whole;
  throw ConfigError(
      fmt::format("layout '{}': the optimizer needs norms of whole parameters, and servers that do not wait "
                  "for each other hold parts; the nearest that works is '{}'",
                  layout::to_string(parallel.layout), layout::to_string(nearest)));
}

void require_gpus_for_servers(const parallel::ParallelOptions& parallel, device::DeviceKind workers) {
  if (parallel.servers_on_gpus && workers != device::DeviceKind::cuda)
    throw ConfigError("parallel.server_device is GPU, but workers compute on CPUs; remove it");
}

/// The division follows from the batch, its limits and the workers; the ownership from the partition, the
/// division and these options.
uint64_t hash_of(const parallel::ProgramPlan& plan) {
  const auto& division = plan.division;
  const auto& parallel = plan.parallel;
  uint64_t hash = hash64(layout::to_string(parallel.layout));
  hash = hash_all(
      hash, {division.global_batch, division.leaves, division.leaves_at_once, division.leaves_of_shares,
             division.leaf_samples, division.micro_batch, division.micro_batches_per_leaf, division.workers});
  for (const int host : plan.hosts) hash = hash_all(hash, {host});
  return hash_all(hash, {parallel.bucket_bytes.value_or(0), static_cast<int>(parallel.reduction),
                         static_cast<int>(parallel.algorithm), plan.state_slots, plan.shared_memory,
                         static_cast<int>(plan.device), plan.servers_are_apart(), plan.skip_nonfinite,
                         plan.update_as_it_lands, plan.digests_parameters, plan.measures.parameters,
                         plan.measures.proposed_slots});
}

void ensure_calls(const program::Program& program, const program::ModelCode& code) {
  proof::CallProof calls(code);
  proof::ensure_calls(program, calls);
}

}  // namespace

layout::BatchDivision divide_batch(const CompileOptions& options, const layout::Layout& layout,
                                   const model::Graph& graph, device::DeviceKind device) {
  const parallel::ParallelOptions& parallel = options.parallel;
  const layout::BatchDivision division =
      layout::divide_batch(options.global_batch, options.micro_batch, options.virtual_replicas,
                           parallel.reduction, layout.dp, layout.pushes);
  const bool states = options.micro_batch > 0, on_gpu = device == device::DeviceKind::cuda;
  if (parallel.reduction != layout::Reduction::reproducible ||
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

CompiledRun::CompiledRun(const CompileOptions& options, const CompileFacts& facts)
    : graph_(model::make_graph(options.model, options.storage)) {
  parallel::ParallelOptions parallel = options.parallel;
  parallel.layout = layout::resolve(parallel.layout, facts.world_size);
  layout::require_available(parallel.layout);
  require_gpus_for_servers(parallel, facts.device);
  const layout::BatchDivision division = divide_batch(options, parallel.layout, graph_, facts.device);
  require_own_profile(graph_, parallel, facts.device, division.micro_batch);
  layout::OwnershipOptions owning = ownership_options(parallel, options.state_slots);
  require_whole_parameters(parallel, options.measures, owning);
  partition_ =
      make_partition(graph_, parallel, bucket_bytes_of(parallel, graph_, owning.owners.count, facts.device),
                     division.micro_batch);
  require_halves(partition_, parallel.layout);
  check_extent(graph_, partition_, division, parallel.layout, facts.device);
  // Throws if the schedule cannot take the micro-batches of one of the replicas.
  for (const int replica : {0, parallel.layout.dp - 1})
    layout::pipeline_schedule(layout::pipeline_shape(parallel.layout, division.micro_batches_of(replica)), 0);
  training_ = std::make_unique<program::ModelCode>(
      graph_, partition_, code_options(options, division, graph_, facts.device, true));
  evaluation_ = std::make_unique<program::ModelCode>(
      graph_, partition_, code_options(options, division, graph_, facts.device, false));
  require_work_for_servers(graph_, parallel, division.micro_batch, owning, facts.device);
  owning.reversed = owning.owners == layout::RankRange{0, parallel.layout.dp} &&
                    parallel.reduction == layout::Reduction::reproducible && division.folds_by_halving;
  ownership_ = std::make_unique<layout::Ownership>(graph_, partition_, owning);
  plan_ = std::make_unique<parallel::ProgramPlan>(parallel::ProgramPlan{
      .graph = graph_,
      .partition = partition_,
      .training = *training_,
      .evaluation = *evaluation_,
      .division = division,
      .parallel = parallel,
      .ownership = *ownership_,
      .shares = ownership_->shares(),
      .state_slots = options.state_slots,
      .hosts = hosts_of(parallel.layout, facts),
      .shared_memory = facts.shared_memory,
      .device = facts.device,
      .skip_nonfinite = options.skips_nonfinite,
      .digests_parameters = options.compares_replicas && ownership_->replicas() > 1 &&
                            (ownership_->has_owners() || ownership_->ties_stages()) &&
                            !parallel.layout.has_sessions(),
      .update_as_it_lands = !options.clips_gradients && !options.skips_nonfinite && !options.measures.any(),
      .measures = options.measures});
  parallel::require_sums_exist(*plan_);
  for (const uint64_t part : {model::hash_of(graph_), hash_of(partition_), hash_of(*training_, partition_),
                              hash_of(*evaluation_, partition_), hash_of(*plan_)})
    program_hash_ = hash_combine(program_hash_, part);
}

std::vector<model::NodeTime> CompiledRun::node_times() const {
  return times_of(graph_, plan_->parallel, division().micro_batch);
}

std::string_view CompiledRun::role_of(int rank) const {
  if (!ownership_->is_worker(rank)) return "server";
  const bool serves = layout().sync == layout::SyncMethod::parameter_server && ownership_->owns(rank);
  return serves ? "worker, server" : "worker";
}

void CompiledRun::prepare(device::Device& device) {
  training_->prepare(device);
  evaluation_->prepare(device);
}

std::vector<const program::Program*> CompiledRun::RankPrograms::all() const {
  std::vector<const program::Program*> list{&step, &evaluate, &boundary};
  for (const program::Program* of_sessions : {&serve, &gather})
    if (!of_sessions->name.empty()) list.push_back(of_sessions);
  return list;
}

program::ProgramTraffic CompiledRun::RankPrograms::traffic() const {
  program::ProgramTraffic both = program::traffic_of(step);
  const program::ProgramTraffic served = program::traffic_of(serve);
  both.sent_bytes += served.sent_bytes;
  both.exchanged_sent_bytes += served.exchanged_sent_bytes;
  both.exchanged_received_bytes += served.exchanged_received_bytes;
  return both;
}

program::SessionTerms CompiledRun::session_terms() const { return parallel::session_terms(*plan_); }

CompiledRun::RankPrograms CompiledRun::compile(int rank) const {
  RankPrograms programs;
  const auto add = [&](program::Program& program, program::MemoryPlan& plan, const auto& compile_kind) {
    program = compile_kind(*plan_, rank);
    plan = finish_program(program);
  };
  add(programs.step, programs.step_plan, parallel::compile_step);
  add(programs.evaluate, programs.evaluate_plan, parallel::compile_evaluation);
  add(programs.boundary, programs.boundary_plan, parallel::compile_boundary);
  ensure_calls(programs.step, *training_);
  ensure_calls(programs.evaluate, *evaluation_);
  if (!layout().has_sessions()) return programs;
  add(programs.serve, programs.serve_plan, parallel::compile_serve);
  add(programs.gather, programs.gather_plan, parallel::compile_gather);
  return programs;
}

void CompiledRun::check_kind(const parallel::ProgramPlan& plan,
                             program::Program (*compile_kind)(const parallel::ProgramPlan&, int rank),
                             const std::function<void()>& gets_on) const {
  std::vector<program::Program> programs;
  for (int rank = 0; rank < plan.ownership.ranks(); ++rank) {
    if (gets_on) gets_on();
    programs.push_back(compile_kind(plan, rank));
    finish_program(programs.back());
  }
  const proof::ModelFlow flow = proof::flow_of(graph_, partition_);
  proof::ensure_checked(programs, {.flow = &flow, .gets_on = gets_on});
  proof::CallProof calls(compile_kind == parallel::compile_evaluation ? plan.evaluation : plan.training);
  for (const program::Program& program : programs) {
    if (gets_on) gets_on();
    proof::ensure_calls(program, calls);
  }
}

void CompiledRun::check_sessions(const std::function<void()>& gets_on) const {
  // A worker that serves does both at the same time, in memory of their own: it is proven as the two ranks
  // that it would be, had the servers processes of their own.
  layout::OwnershipOptions apart = ownership_options(plan_->parallel, plan_->state_slots);
  apart.owners.first = apart.workers;
  const layout::Ownership ownership(graph_, partition_, apart);
  parallel::ProgramPlan plan{.graph = plan_->graph,
                             .partition = plan_->partition,
                             .training = plan_->training,
                             .evaluation = plan_->evaluation,
                             .division = plan_->division,
                             .parallel = plan_->parallel,
                             .ownership = ownership,
                             .shares = ownership.shares(),
                             .state_slots = plan_->state_slots,
                             .device = plan_->device,
                             .skip_nonfinite = plan_->skip_nonfinite,
                             .update_as_it_lands = plan_->update_as_it_lands,
                             .measures = plan_->measures};
  // What it serves lies where it does beside a worker's.
  if (!ownership_->has_servers()) plan.parallel.servers_on_gpus = true;
  const auto compile_kind = [](const parallel::ProgramPlan& of, int rank) {
    if (of.ownership.is_worker(rank)) return parallel::compile_step(of, rank);
    program::Program serve = parallel::compile_serve(of, rank);
    serve.name = "step";  // what meets the workers' steps
    return serve;
  };
  check_kind(plan, compile_kind, gets_on);
}

void CompiledRun::check(const std::function<void()>& gets_on) const {
  // One kind after the other, so that no more than one is held of all ranks.
  check_kind(*plan_, parallel::compile_evaluation, gets_on);
  check_kind(*plan_, parallel::compile_boundary, gets_on);
  if (!layout().has_sessions()) return check_kind(*plan_, parallel::compile_step, gets_on);
  check_sessions(gets_on);
  check_kind(*plan_, parallel::compile_gather, gets_on);
}

}  // namespace lockstep::compile
