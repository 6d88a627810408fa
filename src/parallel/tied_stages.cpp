#include "parallel/tied_stages.h"

#include <fmt/format.h>

#include "base/index.h"

namespace lockstep::parallel {

TiedStages::TiedStages(const ProgramPlan& plan, ProgramWriter& writer, int rank)
    : plan_(plan), writer_(writer), rank_(rank) {
  if (plan.ownership.ties_stages() && !plan.ownership.has_servers())
    channel_ = add_worker_channel(plan, writer.program, "tied");
}

std::vector<TiedStages::Use> TiedStages::uses() const {
  const layout::Ownership& ownership = plan_.ownership;
  std::vector<Use> list;
  for (size_t p = 0; p < writer_.program.parameters.size(); ++p) {
    const auto& place = writer_.program.parameters[p];
    const int owner = place.uses[0].segment, stage = ownership.stage_of_segment(owner);
    for (size_t use = 1; use < place.uses.size(); ++use) {
      const auto& [segment, offset] = place.uses[use];
      if (ownership.stage_of_segment(segment) == stage) continue;
      const tensor::Part part =
          ownership.owned(static_cast<int>(p), ownership.rank_of(stage, ownership.replica_of(rank_)));
      if (!part.empty())
        list.push_back({static_cast<int>(p), static_cast<int>(use), owner, segment, offset, part});
    }
  }
  return list;
}

program::Operand TiedStages::operand(program::Role role, int index, int stage,
                                     const program::ByteRange& range) const {
  const bool sends = role == program::Role::send;
  return {.role = role,
          .index = index,
          .access = sends ? program::Access::read : program::Access::write,
          .range = range,
          .peer = plan_.ownership.rank_of(stage, plan_.ownership.replica_of(rank_))};
}

void TiedStages::collect() {
  if (channel_.lane < 0) return;
  const layout::Ownership& ownership = plan_.ownership;
  std::vector<program::Operand> transfers;
  int index = 0;
  for (const Use& use : uses()) {
    ++index;
    if (ownership.computes(use.segment, rank_))
      transfers.push_back(operand(program::Role::send, index, ownership.stage_of_segment(use.owner),
                                  writer_.gradients(use.segment, use.bytes())));
    if (!ownership.computes(use.owner, rank_)) continue;
    const int buffer = writer_.program.add_buffer(fmt::format("tied.{}.{}", use.parameter, use.number),
                                                  program::Space::gradients, program::Category::gradients,
                                                  use.bytes().size());
    arrived_[{use.parameter, use.number}] = writer_.program.whole(buffer);
    transfers.push_back(operand(program::Role::receive, index, ownership.stage_of_segment(use.segment),
                                writer_.program.whole(buffer)));
  }
  writer_.exchange(channel_.lane, channel_.group, std::move(transfers));
}

void TiedStages::add(int lane, int segment) {
  if (channel_.lane < 0) return writer_.add_tied_uses(lane, segment);
  writer_.add_tied_uses(lane, segment, {}, [this](int parameter, int use) {
    return arrived_.at({parameter, use});
  });
}

void TiedStages::spread(int segment) {
  if (channel_.lane < 0) return;
  const layout::Ownership& ownership = plan_.ownership;
  const int owner = ownership.stage_of_segment(segment), own = ownership.stage_of(rank_);
  const int buffer = writer_.parameter_buffer(segment);
  std::vector<program::Operand> transfers;
  for (int stage = 0; stage < ownership.stages(); ++stage) {
    const layout::ByteSpan used =
        stage == owner ? layout::ByteSpan{} : ownership.held(segment, ownership.rank_of(stage, 0));
    // What is frozen follows what changes.
    const layout::ByteSpan changed = intersection(used, {0, plan_.partition.bucket(segment).owned_bytes});
    if (changed.empty()) continue;
    if (own == owner)
      transfers.push_back(
          operand(program::Role::send, segment, stage, {buffer, changed.begin, changed.size()}));
    if (own == stage)
      transfers.push_back(operand(program::Role::receive, segment, owner,
                                  {buffer, changed.begin - used.begin, changed.size()}));
  }
  writer_.exchange(channel_.lane, channel_.group, std::move(transfers));
}

}  // namespace lockstep::parallel
