#include "parallel/stage_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/index.h"

namespace lockstep::parallel {
namespace {

/// Of a storage, the pieces that make and need it.
struct Span {
  int made = -1;
  int lowest = -1, highest = -1;  // that need it
  void needed_in(int piece) {
    lowest = lowest < 0 ? piece : std::min(lowest, piece);
    highest = std::max(highest, piece);
  }
};

int last_colour_of_ring(int stages, int pieces) { return pieces > stages && stages % 2 == 1 ? 2 : 1; }

}  // namespace

std::vector<PieceBorder> piece_borders(const model::Graph& graph, const model::Partition& partition,
                                       const program::ModelCode& code) {
  std::map<int, Span> activations, gradients;
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    const auto& face = code.segment(s);
    const int piece = partition.piece_of(s);
    for (const int storage : face.writes) activations[storage].made = piece;
    for (const int storage : face.reads)
      if (graph.value(storage).producer >= 0) activations[storage].needed_in(piece);
    for (const int storage : face.input_gradients) gradients[storage].made = piece;
    for (const int storage : face.output_gradients) gradients[storage].needed_in(piece);
  }
  std::vector<PieceBorder> borders(static_cast<size_t>(partition.piece_count()) - 1);
  for (const auto& [storage, span] : activations)
    for (int piece = span.made; piece < span.highest; ++piece)
      nth(borders, piece).activations.push_back(storage);
  for (const auto& [storage, span] : gradients)
    for (int piece = span.lowest; piece >= 0 && piece < span.made; ++piece)
      nth(borders, piece).gradients.push_back(storage);
  return borders;
}

StageLinks::StageLinks(const ProgramPlan& plan, ProgramWriter& writer, const program::ModelCode& code,
                       int rank)
    : ownership_(plan.ownership), writer_(writer), rank_(rank) {
  const int stages = ownership_.stages();
  if (stages == 1) return;
  borders_ = piece_borders(plan.graph, plan.partition, code);
  constexpr std::array kNames{"forward", "backward"};
  for (size_t way = 0; way < channels_.size(); ++way)
    for (int colour = 0; colour <= last_colour_of_ring(stages, plan.partition.piece_count()); ++colour)
      channels_[way].push_back(
          add_worker_channel(plan, writer.program, fmt::format("{}.{}", kNames[way], colour)));
}

Channel StageLinks::channel(bool backward, int lower_piece) const {
  const auto& channels = channels_[backward ? 1 : 0];
  const int stage = lower_piece % ownership_.stages();
  const bool closes_ring = stage + 1 == ownership_.stages();
  return closes_ring ? channels.back() : nth(channels, stage % 2);
}

void StageLinks::transfer(program::Role direction, const layout::PipelineEvent& event) {
  const bool backward = event.receiver < event.piece, sends = direction == program::Role::send;
  const int lower_piece = std::min(event.piece, event.receiver);
  const int here = sends ? event.piece : event.receiver, there = sends ? event.receiver : event.piece;
  const int peer = ownership_.rank_of(there % ownership_.stages(), ownership_.replica_of(rank_));
  const PieceBorder& border = nth(borders_, lower_piece);
  const Channel way = channel(backward, lower_piece);
  writer_.pass(direction, way.lane, way.group, peer, backward ? border.gradients : border.activations,
               backward, here, event.unit.micro_batch);
}

}  // namespace lockstep::parallel
