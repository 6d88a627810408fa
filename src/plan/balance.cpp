#include "plan/balance.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/index.h"
#include "layout/pipeline_timeline.h"
#include "model/pieces.h"
#include "plan/device_plan.h"

namespace lockstep::plan {
namespace {

/// Estimates are right within a few percent: divisions that should just not fit are tried as well, the
/// fastest first, each of which shows what the estimate of a stage lacks; then those that should fit with
/// room to spare.
constexpr double kRooms[] = {1.04, 1.02, 1.01, 1, 1, 1, 0.99, 0.98, 0.96, 0.93, 0.9};

/// By fused group.
struct GroupBytes {
  std::vector<int64_t> parameters;   ///< of those that it is the first to use
  std::vector<int64_t> frozen;       ///< likewise of frozen ones, without gradients and state
  std::vector<int64_t> activations;  ///< of a micro-batch, that backward needs
};

/// Whether backward of whoever makes a value or reads it needs its contents.
bool is_kept(const model::Graph& graph, const model::Value& value) {
  if (value.producer >= 0 && graph.node(value.producer).signature.backward_needs_output) return true;
  if (value.consumer < 0) return false;
  const auto& reader = graph.node(value.consumer);
  for (size_t i = 0; i < reader.inputs.size(); ++i)
    if (&graph.value(reader.inputs[i]) == &value && reader.backward_needs_input(i) &&
        graph.runs_backward(reader))
      return true;
  return false;
}

GroupBytes group_bytes(const model::Graph& graph, int64_t micro_batch) {
  const auto groups = static_cast<size_t>(graph.group_count);
  GroupBytes bytes{std::vector<int64_t>(groups, 0), std::vector<int64_t>(groups, 0),
                   std::vector<int64_t>(groups, 0)};
  std::vector<bool> counted(graph.values.size(), false);
  for (const auto& value : graph.values) {
    const auto& root = graph.value(value.storage);
    if (root.producer < 0 || !is_kept(graph, value) || nth(counted, value.storage)) continue;
    nth(counted, value.storage) = true;
    nth(bytes.activations, graph.node(root.producer).group) +=
        root.spec.shape.count() * micro_batch * size_of(root.spec.dtype);
  }
  for (const auto& parameter : graph.parameters)
    nth(parameter.frozen ? bytes.frozen : bytes.parameters, graph.node(parameter.uses[0].node).group) +=
        4 * parameter.spec.shape.count();
  return bytes;
}

/// What stages take, estimated from what compiled divisions took.
class Estimate {
 public:
  Estimate(const compile::CompiledRun& run, int slots)
      : stages_(run.layout().pp),
        besides_(static_cast<size_t>(stages_), 0),
        bytes_(group_bytes(run.graph(), run.division().micro_batch)),
        of_parameter_(
            2 + slots +
            // A replica's share of the copy for a checkpoint, which GPUs leave to the host.
            (run.device() == device::DeviceKind::cpu ? (1.0 + slots) / run.ownership().replicas() : 0)) {
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
    double bytes = nth(besides_, stage) / chunks_;
    for (int g = first; g < last; ++g)
      bytes += of_parameter_ * static_cast<double>(nth(bytes_.parameters, g)) +
               static_cast<double>(nth(bytes_.frozen, g)) +
               nth(under_way_, stage) * static_cast<double>(nth(bytes_.activations, g));
    return bytes;
  }
  /// A rank holds as many pieces, each of which has its part of the room.
  bool fits(int piece, int first, int last, double room) const {
    return of_piece(piece, first, last) * chunks_ <= room;
  }

  /// Returns whether all stages fit.
  bool learn(const compile::CompiledRun& run, int64_t limit) {
    const layout::Ownership& ownership = run.ownership();
    std::vector<int64_t> most(static_cast<size_t>(stages_), 0);
    for (const int rank : telling_ranks(ownership)) {
      if (!ownership.is_worker(rank)) continue;
      int64_t& of_stage = nth(most, ownership.stage_of(rank));
      of_stage = std::max(of_stage, device_plan(run.compile(rank), run.device()).total_bytes);
    }
    for (int stage = 0; stage < stages_; ++stage) {
      double estimated = 0;
      for (int piece = stage; piece < run.partition().piece_count(); piece += stages_) {
        const auto [first, last] = groups_of(run, piece);
        estimated += of_piece(piece, first, last);
      }
      nth(besides_, stage) += static_cast<double>(nth(most, stage)) - estimated;
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
  std::vector<double> besides_;    // by stage: what a compiled division took beyond the estimate
  std::vector<double> under_way_;  // by stage: micro-batches
  GroupBytes bytes_;
  double of_parameter_;  // itself, its gradient, its state, and what is saved of them
};

/// Looks for cuts.
class Balance {
 public:
  Balance(const compile::CompileOptions& options, const compile::CompileFacts& facts, int64_t limit)
      : options_(options),
        facts_(facts),
        limit_(limit),
        run_(options, facts),
        estimate_(run_, options.state_slots) {}

  compile::CompileOptions find() {
    if (estimate_.learn(run_, limit_)) return options_;
    std::set<std::vector<std::string>> too_large;
    for (const double part : kRooms) {
      // The fastest for which there is room, as estimated; if there is none for any, the smallest.
      compile::CompileOptions cut = divided(std::max(least_room(), part * static_cast<double>(limit_)));
      if (too_large.contains(cut.parallel.cuts)) continue;
      if (estimate_.learn(compile::CompiledRun(cut, facts_), limit_)) return cut;
      too_large.insert(cut.parallel.cuts);
    }
    return options_;
  }

 private:
  std::vector<int> division(double room) const {
    return model::divide_into_pieces(
        run_.graph(), model::group_times(run_.graph(), run_.node_times()), run_.partition().piece_count(),
        [&](int piece, int first, int last) { return estimate_.fits(piece, first, last, room); });
  }

  /// The least in which all stages have room, as estimated, within a thousandth.
  double least_room() const {
    double none = 0, enough = static_cast<double>(limit_);
    while (division(enough).empty()) none = std::exchange(enough, 2 * enough);
    while (enough - none > 1e-3 * enough) {
      const double room = (none + enough) / 2;
      (division(room).empty() ? none : enough) = room;
    }
    return enough;
  }

  compile::CompileOptions divided(double room) const {
    const std::vector<int> last_nodes = division(room);
    compile::CompileOptions cut = options_;
    for (size_t piece = 0; piece + 1 < last_nodes.size(); ++piece)
      cut.parallel.cuts.push_back(run_.graph().node(nth(last_nodes, piece) + 1).name);
    return cut;
  }

  const compile::CompileOptions& options_;
  const compile::CompileFacts& facts_;
  int64_t limit_;
  compile::CompiledRun run_;
  Estimate estimate_;
};

}  // namespace

compile::CompileOptions balanced(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                 int64_t limit) {
  if (limit == 0 || options.parallel.layout.pp == 1 || !options.parallel.cuts.empty()) return options;
  return Balance(options, facts, limit).find();
}

}  // namespace lockstep::plan
