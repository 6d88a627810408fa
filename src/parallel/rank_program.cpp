#include "parallel/rank_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"

namespace lockstep::parallel {
namespace {

ServerRoom server_room(const ProgramPlan& plan, int rank) {
  const layout::RankRange& servers = plan.ownership.owners();
  if (!plan.parallel.layout.has_sessions() || !servers.contains(rank)) return {};
  const program::SessionTerms terms = session_terms(plan);
  return {.workers = terms.workers,
          .slots = program::landing_slots(terms),
          .copies = program::kept_copies(terms, rank - servers.first),
          .slice_bytes = terms.bound ? 0 : terms.slice_bytes,
          .apart = plan.device_of(rank) == device::DeviceKind::cuda};
}

program::Transport worker_transport(const ProgramPlan& plan) {
  return plan.device == device::DeviceKind::cuda ? program::Transport::device : program::Transport::host;
}

}  // namespace

Channel add_channel(program::Program& program, const std::string& name, program::Transport transport) {
  program.groups.push_back({name, program::Members::run(0, program.world_size), transport});
  return {program.add_lane(name, program::LaneKind::comm), static_cast<int>(program.groups.size()) - 1};
}

Channel add_stage_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                          program::Transport transport, int rank) {
  const layout::Ownership& ownership = plan.ownership;
  if (ownership.stages() == 1) return add_channel(program, name, transport);
  const int first = static_cast<int>(program.groups.size());
  for (int stage = 0; stage < ownership.stages(); ++stage)
    program.groups.push_back({fmt::format("{}.stage{}", name, stage),
                              program::Members::run(ownership.rank_of(stage, 0), ownership.replicas()),
                              transport});
  return {program.add_lane(name, program::LaneKind::comm), first + ownership.stage_of(rank)};
}

Channel add_replica_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                            int rank) {
  const layout::Ownership& ownership = plan.ownership;
  const int first = static_cast<int>(program.groups.size());
  for (int replica = 0; replica < ownership.replicas(); ++replica)
    program.groups.push_back({fmt::format("{}.replica{}", name, replica),
                              program::Members::run(replica, ownership.stages(), ownership.replicas()),
                              worker_transport(plan)});
  return {program.add_lane(name, program::LaneKind::comm), first + ownership.replica_of(rank)};
}

Channel add_worker_channel(const ProgramPlan& plan, program::Program& program, const std::string& name) {
  program.groups.push_back(
      {name, program::Members::run(0, plan.ownership.workers()), worker_transport(plan)});
  return {program.add_lane(name, program::LaneKind::comm), static_cast<int>(program.groups.size()) - 1};
}

program::Transport plain_transport(const ProgramPlan& plan) {
  return plan.servers_are_apart() ? program::Transport::host : worker_transport(plan);
}

ProgramWriter begin_program(const ProgramPlan& plan, const char* name, int rank,
                            const program::ModelCode& code) {
  ProgramWriter writer(name, plan.graph, plan.partition, code, plan.ownership, plan.state_slots, rank,
                       nth(plan.shares, rank), server_room(plan, rank), plan.whole_scratch_of(rank));
  auto& program = writer.program;
  program.rank = rank;
  program.world_size = plan.ownership.ranks();
  if (plan.ownership.stages() > 1) program.replicas = plan.ownership.replicas();
  program.reduction = plan.parallel.reduction;
  program.wire = plan.parallel.wire;
  program.error_feedback = plan.keeps_residuals();
  program.leaves = plan.division.leaves;
  program.micro_batches_per_leaf = plan.division.micro_batches_per_leaf;
  if (plan.keeps_residuals() && plan.ownership.is_worker(rank)) writer.add_residuals(plan.leaves_of(rank));
  return writer;
}

program::SessionTerms session_terms(const ProgramPlan& plan) {
  const layout::Layout& layout = plan.parallel.layout;
  program::SessionTerms terms{.workers = plan.division.workers, .ranges = {}, .pushes = layout.pushes};
  if (layout.mode == layout::ServerMode::stale) terms.bound = layout.bound;
  const layout::RankRange& servers = plan.ownership.owners();
  int64_t most = 0;  // bytes of a server
  for (int server = servers.first; server < servers.end(); ++server) {
    int ranges = 0;
    int64_t its = 0;
    for (int s = 0; s < static_cast<int>(plan.partition.segments.size()); ++s) {
      const int64_t bytes = plan.ownership.updated_by(s, server).size();
      ranges += bytes > 0 ? 1 : 0;
      its += bytes;
    }
    terms.ranges.push_back(ranges);
    most = std::max(most, its);
  }
  // So that no worker's slices take more room than all of the parameters would.
  constexpr int64_t kAligned = 64, kTogether = program::kSlicesUnderWay * kAligned;
  terms.slice_bytes = std::min(terms.slice_bytes, (most + kTogether - 1) / kTogether * kAligned);
  return terms;
}

}  // namespace lockstep::parallel
