#include "parallel/tied_stages.h"

#include <fmt/format.h>

namespace lockstep::parallel {

TiedStages::TiedStages(const ProgramPlan& plan, ProgramWriter& writer, int rank)
    : plan_(plan), writer_(writer), rank_(rank) {
  bool any = false;
  for_uses([&](int, int, int, const auto&, const auto&) { any = true; });
  if (any) channel_ = add_channel(writer.program, "tied", plain_transport(plan));
}

/// Calls visit(parameter, use, segment of the first use, the use's segment, its bytes of that bucket) for
/// each use in another stage than the first.
template <class Visit>
void TiedStages::for_uses(const Visit& visit) const {
  const layout::Placement& placement = plan_.placement;
  for (size_t p = 0; p < writer_.program.parameters.size(); ++p) {
    const auto& place = writer_.program.parameters[p];
    for (size_t use = 1; use < place.uses.size(); ++use) {
      const auto& [segment, offset] = place.uses[use];
      const int owner = place.uses[0].segment;
      if (placement.stage_of_segment(segment) != placement.stage_of_segment(owner))
        visit(static_cast<int>(p), static_cast<int>(use), owner, segment,
              layout::ByteSpan{offset, offset + place.size_bytes});
    }
  }
}

program::Operand TiedStages::operand(program::Role role, int index, int stage,
                                     const program::ByteRange& range) const {
  const bool sends = role == program::Role::send;
  return {.role = role,
          .index = index,
          .access = sends ? program::Access::read : program::Access::write,
          .range = range,
          .peer = plan_.placement.rank_of(stage, plan_.placement.replica_of(rank_))};
}

void TiedStages::collect() {
  const layout::Placement& placement = plan_.placement;
  std::vector<program::Operand> transfers;
  int index = 0;
  for_uses([&](int parameter, int use, int owner, int segment, const layout::ByteSpan& bytes) {
    ++index;
    if (placement.computes(segment, rank_))
      transfers.push_back(operand(program::Role::send, index, placement.stage_of_segment(owner),
                                  writer_.gradients(segment, bytes)));
    if (!placement.computes(owner, rank_)) return;
    const int buffer =
        writer_.program.add_buffer(fmt::format("tied.{}.{}", parameter, use), program::Space::gradients,
                                   program::Category::gradients, bytes.size());
    arrived_[{parameter, use}] = writer_.program.whole(buffer);
    transfers.push_back(operand(program::Role::receive, index, placement.stage_of_segment(segment),
                                writer_.program.whole(buffer)));
  });
  writer_.exchange(channel_.lane, channel_.group, std::move(transfers));
}

void TiedStages::add(int lane, int segment) {
  if (plan_.placement.stages() == 1) return writer_.add_tied_uses(lane, segment);
  if (plan_.placement.computes(segment, rank_))
    writer_.add_tied_uses(lane, segment, GradientsOf::updated, [this](int parameter, int use) {
      return arrived_.at({parameter, use});
    });
}

void TiedStages::spread() {
  const layout::Placement& placement = plan_.placement;
  std::vector<program::Operand> transfers;
  for (int s = 0; s < static_cast<int>(plan_.partition.segments.size()); ++s) {
    const int owner = placement.stage_of_segment(s);
    for (int stage = 0; stage < placement.stages(); ++stage) {
      const layout::ByteSpan used =
          stage == owner ? layout::ByteSpan{} : placement.held(s, placement.rank_of(stage, 0));
      if (used.empty()) continue;
      const int own = placement.stage_of(rank_);
      if (own == owner)
        transfers.push_back(operand(program::Role::send, s, stage, writer_.gradients(s, used)));
      if (own == stage)
        transfers.push_back(operand(program::Role::receive, s, owner, writer_.gradients(s, used)));
    }
  }
  writer_.exchange(channel_.lane, channel_.group, std::move(transfers));
}

}  // namespace lockstep::parallel
