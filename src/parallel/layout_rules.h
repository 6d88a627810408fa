#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "device/device.h"
#include "lockstep/tensor.h"
#include "model/graph.h"
#include "parallel/parallel_options.h"

namespace lockstep::parallel {

/// What was chosen for a run beside its model, and what is known of the job. Rules that need an unknown fact
/// allow everything.
struct RunChoice {
  const ParallelOptions& options;
  /// Resolved, if the number of processes is known.
  layout::Layout layout;
  DType storage = DType::float32;
  bool states_async_statistics = false;  ///< how servers average running statistics
  /// The first running statistic of the model; "": it has none. nullopt: the model is not known.
  std::optional<std::string> statistic = {};
  bool updates_matrices = false;  ///< the optimizer works on whole matrices
  bool noise_scale = false;       ///< of gradients, is measured
  /// Samples of a step, and of the largest micro-batch. 0: not known.
  int64_t global_batch = 0, largest_micro_batch = 0;
  std::optional<bool> stages_share_parameters = {};
  bool transforms_on_gpu = false;                 ///< data.transforms_on
  std::optional<bool> reads_images = {};          ///< reads_images() of the model
  bool histograms = false;                        ///< of parameters and gradients, for TensorBoard
  bool writes_samples = false;                    ///< a language model writes text while it learns
  std::optional<device::DeviceKind> device = {};  ///< of workers
  std::optional<bool> shared_memory = {};         ///< whether all workers share the memory of one host
};

/// Whether the model has an input 'image' of three dimensions: what images of files are read into.
bool reads_images(const model::Graph& graph);

/// One thing that does not go with another.
struct LayoutRule {
  std::string_view name;  ///< what must hold
  /// The field to blame, such as "parallel.algorithm".
  std::string_view field;
  /// Why it is refused, as what follows the field's name ("is GPU, but ..."); nullopt: it is not.
  std::optional<std::string> (*why_refused)(const RunChoice&);
};

/// The rules of what goes with what among the options of a layout, in the order in which they are checked.
/// Layouts whose own keys contradict each other are refused before (layout::require_available).
std::span<const LayoutRule> layout_rules();

struct Refusal {
  std::string_view rule;  ///< its name
  std::string field, reason;
};
/// By the first rule that refuses.
std::optional<Refusal> first_refusal(const RunChoice& choice);
/// Throws ConfigError "field reason" by the first rule that refuses.
void require_allowed(const RunChoice& choice);

}  // namespace lockstep::parallel
