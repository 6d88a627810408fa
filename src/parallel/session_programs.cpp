#include "parallel/session_programs.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/rank_program.h"
#include "parallel/server_sync.h"

namespace lockstep::parallel {
namespace {

/// The groups of steps and of what serves them, in one order.
struct SessionGroups {
  int alone, servers;

  SessionGroups(program::Program& program, int rank) : alone(add(program, "alone", rank, 1)) {
    servers = add(program, "servers", 0, program.world_size);
  }

 private:
  static int add(program::Program& program, const char* name, int first, int count) {
    program.groups.push_back({name, program::Members::run(first, count)});
    return static_cast<int>(program.groups.size()) - 1;
  }
};

/// Calls `visit(server, shard, bytes)` for each server's part of a segment's parameters.
template <class Visit>
void for_parts(const ProgramPlan& plan, int segment, const Visit& visit) {
  const layout::RankRange& servers = plan.ownership.owners();
  for (int server = servers.first; server < servers.end(); ++server)
    if (const layout::ByteSpan part = plan.ownership.updated_by(segment, server); !part.empty())
      visit(server, plan.ownership.position_of(server), part);
}

UpdateVerdict pushed_verdict(const ProgramPlan& plan) {
  return plan.update_as_it_lands ? UpdateVerdict::none
         : plan.skip_nonfinite   ? UpdateVerdict::scale_and_predicate
                                 : UpdateVerdict::scale;
}

/// In sessions leaves are pushes, of which each worker makes one at a time.
ProgramWriter begin_session_program(const ProgramPlan& plan, const char* name, int rank) {
  ProgramWriter writer = begin_program(plan, name, rank, plan.training);
  writer.program.leaves = plan.division.workers;
  return writer;
}

}  // namespace

program::Program compile_session_step(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_session_program(plan, "step", rank);
  auto& program = writer.program;
  const SessionGroups groups(program, rank);
  if (!plan.ownership.is_worker(rank)) return std::move(program);
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const int compute = program.add_lane("compute", program::LaneKind::compute);
  const int alone = program.add_lane("alone", program::LaneKind::comm);
  const int pull = program.add_lane("pull", program::LaneKind::comm);
  const int push = program.add_lane("push", program::LaneKind::comm);
  const int segments = static_cast<int>(plan.partition.segments.size());
  writer.add_metrics(1);
  writer.add_gradient_slots(1);
  for (int s = 0; s < segments; ++s)
    for_parts(plan, s, [&](int server, int shard, const layout::ByteSpan& part) {
      writer.pull(pull, groups.servers, s, shard, server, part);
    });
  writer.constants(copy);
  writer.cast_parameters(compute, ProgramWriter::Changes::arrivals);
  // A push that waits for no verdict leaves as soon as its gradients are there. Where servers need one, it
  // comes with the last push to each of them, which is of its first segment.
  std::map<int, int> first_segments;  // by server
  for (int s = segments - 1; s >= 0; --s)
    for_parts(plan, s, [&](int server, int, const layout::ByteSpan&) { first_segments[server] = s; });
  const auto push_segment = [&](int s, bool is_verdict_known) {
    for_parts(plan, s, [&](int server, int shard, const layout::ByteSpan& part) {
      const bool completes = plan.update_as_it_lands || first_segments.at(server) == s;
      if (completes == is_verdict_known)
        writer.push(push, groups.servers, s, shard, server, part,
                    completes ? std::optional(pushed_verdict(plan)) : std::nullopt);
    });
  };

  const int micro_batches = plan.division.micro_batches_per_leaf;
  writer.set_micro_batches(
      std::vector<layout::TreeNode>(static_cast<size_t>(micro_batches), {rank, rank + 1}));
  for (int m = 0; m < micro_batches; ++m) {
    const bool last = m + 1 == micro_batches;
    writer.load(copy, m);
    for (int s = 0; s < segments; ++s) writer.forward(compute, s, m, m > 0);
    if (last) writer.agree(alone, groups.alone, 1, 1);
    for (int s = segments - 1; s >= 0; --s) {
      writer.backward(program::InstructionKind::backward, compute, s, m, 0, m > 0);
      if (!last) continue;
      writer.add_ties_first(compute, s);
      push_segment(s, plan.update_as_it_lands);
    }
  }
  writer.norm(compute, {}, GradientsOf::all);
  if (!plan.update_as_it_lands)
    for (int s = segments - 1; s >= 0; --s) push_segment(s, true);
  return std::move(program);
}

program::Program compile_serve(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_session_program(plan, "serve", rank);
  auto& program = writer.program;
  const SessionGroups groups(program, rank);
  const int lane = program.add_lane("server", program::LaneKind::server);
  if (!plan.ownership.owners().contains(rank)) return std::move(program);
  const layout::Layout& layout = plan.parallel.layout;
  const int bound = layout.mode == layout::ServerMode::stale ? layout.bound : -1;
  for (int s = 0; s < static_cast<int>(plan.partition.segments.size()); ++s)
    writer.serve(lane, groups.servers, s, plan.ownership.position_of(rank), bound);
  return std::move(program);
}

program::Program compile_gather(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "gather", rank, plan.training);
  auto& program = writer.program;
  const Channel channel = add_channel(program, "gather", plain_transport(plan));
  const layout::Ownership& ownership = plan.ownership;
  for (int s = 0; s < static_cast<int>(plan.partition.segments.size()); ++s) {
    if (writer.parameter_buffer(s) < 0) continue;
    std::vector<Recipient> workers;
    for (int worker = 0; worker < ownership.workers(); ++worker)
      workers.push_back({worker, ownership.held(s, worker)});
    write_server_gather({.program = program,
                         .lane = channel.lane,
                         .group = channel.group,
                         .worker = rank,
                         .workers = plan.division.workers,
                         .segment = s,
                         .slots = {},
                         .shards = parameter_shards(ownership, s)},
                        ownership.owners(), workers, ownership.held(s, rank), writer.parameter_buffer(s));
  }
  return std::move(program);
}

}  // namespace lockstep::parallel
