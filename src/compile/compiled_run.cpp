#include "compile/compiled_run.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "ops/orthogonalizer.h"
#include "parallel/rank_program.h"
#include "parallel/session_programs.h"
#include "parallel/step_programs.h"
#include "program/matrix_scratch.h"
#include "proof/call_proof.h"
#include "proof/checker.h"
#include "proof/model_flow.h"

namespace lockstep::compile {
namespace {

/// The images of files are the input of this name (parallel::reads_images()).
std::optional<program::PackedInput> packed_input(const std::optional<pixels::PackedLayout>& layout,
                                                 const model::Graph& graph) {
  if (!layout) return {};
  const auto image =
      std::ranges::find(graph.inputs, "image", [&](int input) { return graph.value(input).name; });
  ensure(image != graph.inputs.end(), "only images come packed");
  return program::PackedInput{.input = static_cast<int>(image - graph.inputs.begin()), .layout = *layout};
}

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
          .repeats = training && options.parallel.layout.recompute == layout::Recompute::selective,
          .packed = packed_input(training ? options.packed_training : options.packed_evaluation, graph)};
}

/// Dependencies, then places; plan_memory adds the dependencies that sharing of places makes necessary.
program::MemoryPlan finish_program(program::Program& program) {
  program::derive_dependencies(program);
  return program::plan_memory(program);
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
  if (const auto& packed = code.options().packed)
    hash = hash_all(hash, {packed->input, packed->layout.image.height, packed->layout.image.width,
                           packed->layout.image.channels, packed->layout.steps, packed->layout.after,
                           packed->layout.mixes, packed->layout.sums, packed->layout.sums_after});
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    const auto& face = code.segment(s);
    hash = hash_all(hash, {face.stash_bytes, face.forward_temporary_bytes, face.backward_temporary_bytes});
  }
  return hash;
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
  for (const auto* scratch : {&plan.whole_scratch.of_workers, &plan.whole_scratch.of_servers})
    for (const int64_t bytes : *scratch) hash = hash_all(hash, {bytes});
  return hash_all(
      hash, {parallel.bucket_bytes.value_or(0), static_cast<int>(parallel.reduction),
             static_cast<int>(parallel.algorithm), static_cast<int>(parallel.wire), parallel.error_feedback,
             plan.state_slots, plan.shared_memory, static_cast<int>(plan.device), plan.servers_are_apart(),
             plan.skip_nonfinite, plan.update_as_it_lands, plan.digests_parameters, plan.measures.parameters,
             plan.measures.proposed_slots});
}

/// In sessions servers update, on processors.
parallel::WholeScratch whole_scratch_of(const RunPlan& run) {
  const CompileOptions& options = run.options;
  if (options.matrices.empty()) return {};
  const bool on_gpus = run.facts.device == device::DeviceKind::cuda && !run.layout().has_sessions();
  const auto kind = [](bool gpu) { return gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu; };
  const auto bytes_of = [&](const std::string& name, bool gpu, int threads) -> int64_t {
    const auto found = options.matrices.find(name);
    if (found == options.matrices.end()) return 0;
    const auto orthogonalizer = ops::make_orthogonalizer(kind(gpu), found->second, 1, threads);
    return program::MatrixScratch(found->second, orthogonalizer->workspace_bytes()).size_bytes;
  };
  parallel::WholeScratch scratch;
  for (const auto& parameter : run.graph.parameters) {
    scratch.of_workers.push_back(bytes_of(parameter.name, on_gpus, options.parallel.intra_op_threads));
    scratch.of_servers.push_back(bytes_of(parameter.name, on_gpus && options.parallel.servers_on_gpus,
                                          options.parallel.server_threads));
  }
  return scratch;
}

void ensure_calls(const program::Program& program, const program::ModelCode& code) {
  proof::CallProof calls(code);
  proof::ensure_calls(program, calls);
}

}  // namespace

CompiledRun::CompiledRun(RunPlan plan) : run_(std::move(plan)) {
  const CompileOptions& options = run_.options;
  training_ = std::make_unique<program::ModelCode>(
      run_.graph, run_.partition, code_options(options, run_.division, run_.graph, run_.facts.device, true));
  evaluation_ = std::make_unique<program::ModelCode>(
      run_.graph, run_.partition, code_options(options, run_.division, run_.graph, run_.facts.device, false));
  ownership_ = std::make_unique<layout::Ownership>(run_.graph, run_.partition, run_.owning);
  plan_ = std::make_unique<parallel::ProgramPlan>(
      parallel::ProgramPlan{.graph = run_.graph,
                            .partition = run_.partition,
                            .training = *training_,
                            .evaluation = *evaluation_,
                            .division = run_.division,
                            .parallel = options.parallel,
                            .ownership = *ownership_,
                            .shares = ownership_->shares(),
                            .state_slots = options.state_slots,
                            .hosts = run_.hosts,
                            .shared_memory = run_.facts.shared_memory,
                            .device = run_.facts.device,
                            .skip_nonfinite = options.skips_nonfinite,
                            .digests_parameters = options.compares_replicas && ownership_->replicas() > 1 &&
                                                  (ownership_->has_owners() || ownership_->ties_stages()) &&
                                                  !layout().has_sessions(),
                            // In sessions servers measure what they serve when a push has come.
                            .update_as_it_lands = !options.clips_gradients && !options.skips_nonfinite &&
                                                  (!options.measures.any() || layout().has_sessions()),
                            .measures = options.measures,
                            .whole_scratch = whole_scratch_of(run_)});
  for (int rank = 0; rank < ownership_->workers() && plan_->keeps_residuals(); ++rank)
    std::ranges::move(ownership_->residuals(rank, plan_->leaves_of(rank)),
                      std::back_inserter(nth(plan_->shares, rank)));
  for (const uint64_t part :
       {model::hash_of(run_.graph), hash_of(run_.partition), hash_of(*training_, run_.partition),
        hash_of(*evaluation_, run_.partition), hash_of(*plan_)})
    program_hash_ = hash_combine(program_hash_, part);
}

std::vector<model::NodeTime> CompiledRun::node_times() const {
  return times_of(run_.graph, run_.options.parallel, division().micro_batch);
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
  const proof::ModelFlow flow = proof::flow_of(run_.graph, run_.partition);
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
  layout::OwnershipOptions apart = run_.owning;
  apart.owners.first = apart.workers;
  const layout::Ownership ownership(run_.graph, run_.partition, apart);
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
                             .measures = plan_->measures,
                             .whole_scratch = plan_->whole_scratch};
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
