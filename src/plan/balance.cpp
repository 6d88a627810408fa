#include "plan/balance.h"

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "layout/pipeline_timeline.h"
#include "model/pieces.h"
#include "plan/device_plan.h"

namespace lockstep::plan {
namespace {

/// So many divisions are compiled at most: each shows what the estimate of a stage lacks.
constexpr int kAttempts = 6;

/// By fused group.
struct GroupBytes {
  std::vector<int64_t> parameters;   ///< of those that it is the first to use
  std::vector<int64_t> activations;  ///< of a micro-batch, that backward needs
};

/// Whether backward of whoever makes a value or reads it needs its contents.
bool is_kept(const model::Graph& graph, const model::Value& value) {
  if (value.producer >= 0 && graph.node(value.producer).signature.backward_needs_output) return true;
  if (value.consumer < 0) return false;
  const auto& reader = graph.node(value.consumer);
  for (size_t i = 0; i < reader.inputs.size(); ++i)
    if (&graph.value(reader.inputs[i]) == &value && reader.signature.backward_needs_input[i]) return true;
  return false;
}

GroupBytes group_bytes(const model::Graph& graph, int64_t micro_batch) {
  const auto groups = static_cast<size_t>(graph.group_count);
  GroupBytes bytes{std::vector<int64_t>(groups, 0), std::vector<int64_t>(groups, 0)};
  std::vector<bool> counted(graph.values.size(), false);
  for (const auto& value : graph.values) {
    const auto& root = graph.value(value.storage);
    if (root.producer < 0 || !is_kept(graph, value) || nth(counted, value.storage)) continue;
    nth(counted, value.storage) = true;
    nth(bytes.activations, graph.node(root.producer).group) +=
        root.spec.shape.count() * micro_batch * size_of(root.spec.dtype);
  }
  for (const auto& parameter : graph.parameters)
    nth(bytes.parameters, graph.node(parameter.uses[0].node).group) += 4 * parameter.spec.shape.count();
  return bytes;
}

/// What stages take, estimated from what compiled divisions took.
class Estimate {
 public:
  Estimate(const compile::CompiledRun& run, int slots)
      : stages_(run.layout().pp),
        factors_(static_cast<size_t>(stages_), 1),
        bytes_(group_bytes(run.graph(), run.division().micro_batch)),
        of_parameter_(2 + slots) {
    const layout::PipelineShape shape =
        layout::pipeline_shape(run.layout(), run.division().micro_batches_of(0));
    chunks_ = shape.chunks;
    for (int stage = 0; stage < stages_; ++stage)
      under_way_.push_back(
          static_cast<double>(layout::activation_peak(layout::pipeline_schedule(shape, stage)).pairs) /
          chunks_);
  }

  double of_piece(int piece, int first, int last) const {
    const int stage = piece % stages_;
    double bytes = 0;
    for (int g = first; g < last; ++g)
      bytes += of_parameter_ * static_cast<double>(nth(bytes_.parameters, g)) +
               nth(under_way_, stage) * static_cast<double>(nth(bytes_.activations, g));
    return nth(factors_, stage) * bytes;
  }
  /// A rank holds as many pieces, each of which has its part of the room.
  bool fits(int piece, int first, int last, int64_t limit) const {
    return of_piece(piece, first, last) * chunks_ <= static_cast<double>(limit);
  }

  /// Returns whether all stages fit.
  bool learn(const compile::CompiledRun& run, int64_t limit) {
    const layout::Placement& placement = run.placement();
    std::vector<int64_t> most(static_cast<size_t>(stages_), 0);
    for (const int rank : telling_ranks(placement)) {
      if (!placement.is_worker(rank)) continue;
      int64_t& of_stage = nth(most, placement.stage_of(rank));
      of_stage = std::max(of_stage, device_plan(run.compile(rank), run.device()).total_bytes);
    }
    for (int stage = 0; stage < stages_; ++stage) {
      double estimated = 0;
      for (int piece = stage; piece < run.partition().piece_count(); piece += stages_) {
        const auto [first, last] = groups_of(run, piece);
        estimated += of_piece(piece, first, last);
      }
      if (estimated > 0) nth(factors_, stage) *= static_cast<double>(nth(most, stage)) / estimated;
    }
    return std::ranges::all_of(most, [&](int64_t bytes) { return bytes <= limit; });
  }

 private:
  /// [first, last).
  static std::pair<int, int> groups_of(const compile::CompiledRun& run, int piece) {
    const auto& partition = run.partition();
    int first = -1, last = -1;
    for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
      if (partition.piece_of(s) != piece) continue;
      if (first < 0) first = run.graph().node(partition.segment(s).first_node).group;
      last = run.graph().node(partition.segment(s).last_node).group + 1;
    }
    return {first, last};
  }

  int stages_, chunks_ = 1;
  std::vector<double> factors_, under_way_;  // by stage
  GroupBytes bytes_;
  double of_parameter_;  // itself, its gradient, its state
};

}  // namespace

compile::CompileOptions balanced(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                 int64_t limit) {
  if (limit == 0 || options.parallel.layout.pp == 1 || !options.parallel.cuts.empty()) return options;
  compile::CompileOptions tried = options;
  std::unique_ptr<Estimate> estimate;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const compile::CompiledRun run(tried, facts);
    if (!estimate) estimate = std::make_unique<Estimate>(run, options.state_slots);
    if (estimate->learn(run, limit)) return tried;
    const auto last_nodes = model::divide_into_pieces(
        run.graph(), run.partition().piece_count(),
        [&](int piece, int first, int last) { return estimate->fits(piece, first, last, limit); });
    if (last_nodes.empty()) return options;
    std::vector<std::string> cuts;
    for (size_t piece = 0; piece + 1 < last_nodes.size(); ++piece)
      cuts.push_back(run.graph().node(last_nodes[piece] + 1).name);
    if (cuts == tried.parallel.cuts) return options;
    tried.parallel.cuts = cuts;
  }
  return options;
}

}  // namespace lockstep::plan
