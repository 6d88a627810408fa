#include "plan/stage_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/index.h"
#include "base/text.h"
#include "layout/pipeline_timeline.h"
#include "model/node_times.h"
#include "plan/step_estimate.h"

namespace lockstep::plan {
namespace {

std::vector<PieceShare> pieces_of(const compile::CompiledRun& run) {
  const auto& graph = run.graph();
  const auto& partition = run.partition();
  const std::vector<double> times = model::group_times(graph, run.node_times());
  const double all = std::accumulate(times.begin(), times.end(), 0.0);
  std::vector<PieceShare> pieces(static_cast<size_t>(partition.piece_count()));
  for (int piece = 0; piece < partition.piece_count(); ++piece) {
    PieceShare& share = nth(pieces, piece);
    share.stage = piece % run.layout().pp;
    std::set<int> groups, parameters;
    for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
      if (partition.piece_of(s) != piece) continue;
      const auto& segment = partition.segment(s);
      if (share.first_layer.empty()) share.first_layer = graph.node(segment.first_node).name;
      share.last_layer = graph.node(segment.last_node).name;
      for (int n = segment.first_node; n <= segment.last_node; ++n) {
        groups.insert(graph.node(n).group);
        parameters.insert(graph.node(n).parameters.begin(), graph.node(n).parameters.end());
      }
    }
    for (const int group : groups) share.time += nth(times, group) / all;
    for (const int p : parameters) share.parameters += graph.parameter(p).spec.shape.count();
  }
  return pieces;
}

}  // namespace

PipelineSummary summarize_pipeline(const compile::CompiledRun& run) {
  const layout::Ownership& ownership = run.ownership();
  PipelineSummary summary{.pieces = pieces_of(run), .memory_bytes = {}, .activation_bytes = {}};
  for (int stage = 0; stage < ownership.stages(); ++stage) {
    const auto plans = run.compile(ownership.rank_of(stage, 0)).plans();
    const program::MemoryPlan all = program::combine_plans(plans);
    summary.memory_bytes.push_back(all.total_bytes);
    summary.activation_bytes.push_back(nth(all.category_bytes, program::Category::activations));
  }
  summary.micro_batches = run.division().micro_batches_of(0);
  const layout::PipelineShape shape = layout::pipeline_shape(run.layout(), summary.micro_batches);
  summary.bubble_fraction = layout::replay(shape, {}).bubble_fraction();
  summary.likely_bubble_fraction = layout::replay_pieces(shape, piece_times(run)).bubble_fraction();
  return summary;
}

std::string describe(const PipelineSummary& summary, const layout::Layout& layout) {
  size_t width = 6;
  const auto layers_of = [](const PieceShare& piece) {
    return piece.first_layer == piece.last_layer
               ? piece.first_layer
               : fmt::format("{} ... {}", piece.first_layer, piece.last_layer);
  };
  for (const PieceShare& piece : summary.pieces) width = std::max(width, layers_of(piece).size());
  std::string text = fmt::format("{:<7}{:<{}}{:>13}{:>8}{:>13}{:>13}\n", "stage", "layers", width,
                                 "parameters", "time", "memory", "activations");
  for (const PieceShare& piece : summary.pieces) {
    text +=
        fmt::format("{:<7}{:<{}}{:>13}{:>6.1f} %{:>13}{:>13}\n", piece.stage, layers_of(piece), width,
                    piece.parameters, 100 * piece.time, human_bytes(nth(summary.memory_bytes, piece.stage)),
                    human_bytes(nth(summary.activation_bytes, piece.stage)));
  }
  const auto& key = *std::ranges::find(layout::layout_keys(), "schedule", &layout::LayoutKey::name);
  text += fmt::format(
      "{} of {} micro-batch{}: stages wait for {:.1f} % of a step if all take as long, for {:.1f} % with "
      "these "
      "times\n",
      layout::value_text(key, key.get(layout)), summary.micro_batches, summary.micro_batches == 1 ? "" : "es",
      100 * summary.bubble_fraction, 100 * summary.likely_bubble_fraction);
  return text;
}

}  // namespace lockstep::plan
