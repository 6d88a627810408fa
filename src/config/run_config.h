#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_options.h"
#include "control/watchdog_options.h"
#include "data/data_options.h"
#include "data/dataset.h"
#include "lockstep/model.h"
#include "model/graph.h"
#include "model/node_times.h"
#include "observe/metrics_options.h"
#include "optim/batch_scaling.h"
#include "optim/loss_scaling.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/parallel_options.h"

namespace lockstep::config {

/// What happens at a step whose loss or gradients are not finite. locate: stop, and find the first such
/// tensor by replay. stop: stop at once. ignore: no check, and buckets may be updated as they land. skip:
/// continue without an update.
enum class NonFinitePolicy { locate, stop, ignore, skip };

/// What a language model writes while it trains.
struct SampleOptions {
  int64_t every_steps = 0;  ///< 0: it does not
  std::string prompt;       ///< not empty
  int64_t tokens = 100;
  double temperature = 1;  ///< 0: always the most probable token
  bool operator==(const SampleOptions&) const = default;
};

struct TrainerOptions {
  int64_t global_batch = 0;  ///< samples per optimizer step, over all workers
  int64_t micro_batch = 0;   ///< upper bound of samples per forward pass; 0: none
  int virtual_replicas =
      0;              ///< leaves of the canonical tree; 0: see resolved_virtual_replicas. Never 0 once read
  int64_t steps = 0;  ///< 0 if epochs are given
  double epochs = 0;
  uint64_t seed = 1;
  double clip_norm = 0;          ///< 0: no clipping
  int64_t eval_every_steps = 0;  ///< 0: only at the end
  bool eval_at_end = true;
  NonFinitePolicy nonfinite = NonFinitePolicy::locate;
  int64_t nonfinite_limit = 10;     ///< skip: steps
  int64_t check_every_steps = 100;  ///< replicas are compared; 0: never
  double spike_threshold = 8;       ///< standard deviations; 0: no warnings
  int64_t early_stopping = 0;  ///< evaluations without a new lowest loss after which training ends; 0: never
  SampleOptions sample;
  bool operator==(const TrainerOptions&) const = default;
};

struct DeviceOptions {
  int64_t memory_limit = 0;  ///< bytes that a rank may plan; 0: none
  bool operator==(const DeviceOptions&) const = default;
};

enum class ComputeType { float32, bfloat16, float16, tf32 };

struct PrecisionOptions {
  ComputeType compute = ComputeType::float32;
  optim::LossScalingOptions loss_scaling;  ///< float16
  bool fused_gelu = false;  ///< linear layers on GPUs compute neighbouring GELUs (model/fusion.h)

  /// The element type of activations, their gradients and copies of weights.
  DType storage() const;
  bool scales_loss() const { return compute == ComputeType::float16; }
  bool operator==(const PrecisionOptions&) const = default;
};

/// Where the first parameters come from.
struct WeightsOptions {
  std::string from;                     ///< folder, file, checkpoint or run; empty: all are drawn
  std::vector<std::string> new_layers;  ///< layers whose parameters are drawn all the same
  std::vector<std::string> leave_out;   ///< tensors, or what begins their names, that are not read
  bool operator==(const WeightsOptions&) const = default;
};

/// A whole run, as the plain options of each module, without protobuf. Configs are converted to it.
struct RunConfig {
  ModelSpec model;
  std::shared_ptr<const model::Graph> graph;  ///< of `model`, in float32
  data::DataOptions data;
  TrainerOptions trainer;
  bool states_virtual_replicas = false;  ///< virtual_replicas is stated, not a default
  optim::OptimizerOptions optimizer;
  /// optimizer.scale_with_batch, of which optimizer.learning_rate is the product; nothing: as it is stated.
  std::optional<optim::BatchScaling> batch_scaling;
  optim::GroupRates group_rates;   ///< of parameters in optimizer.groups; with muon, of all that learn
  bool evaluates_average = false;  ///< evaluations of the training use the parameters' moving average
  optim::ScheduleOptions schedule;
  PrecisionOptions precision;
  parallel::ParallelOptions parallel;
  checkpoint::CheckpointOptions checkpoint;
  observe::MetricsOptions metrics;
  control::WatchdogOptions watchdog;
  DeviceOptions device;
  WeightsOptions weights;

  std::string
      effective_text;  ///< config.effective.textproto: every default filled in, reads back as the same run
  /// The same, flattened: "trainer.seed" -> "7".
  std::vector<std::pair<std::string, std::string>> fields;
  std::string relative_to;   ///< absolute; "": paths begin from the current folder
  uint64_t config_hash = 0;  ///< of everything
  uint64_t math_hash = 0;    ///< of math_fields
  /// Everything that decides the numbers, by name ("trainer.seed" -> "7"): the layers of the model, however
  /// they were written, data selection, trainer, optimizer, precision, reduction and, under REPRODUCIBLE,
  /// virtual replicas, micro-batch size and threads per op, and the weights that the run begins with. Not:
  /// layout, devices, folders, metrics, and how often the run is evaluated and saved.
  std::vector<std::pair<std::string, std::string>> math_fields;
};

/// The text that a run keeps: the effective one, with the current folder where a path begins from it, so that
/// it is the same run from any other folder.
std::string kept_text(const RunConfig& config);

/// "learning rate 0.2: 0.1 for a global batch of 256, times 512 / 256"; "" if it does not follow the batch.
std::string describe_batch_scaling(const RunConfig& config);

/// virtual_replicas as stated, or the largest power of two up to 8 that divides global_batch.
int resolved_virtual_replicas(const TrainerOptions& options);

/// The parts of a run that a C++ program provides.
struct OwnParts {
  std::optional<ModelSpec> model;
  data::DatasetPair samples;  ///< train null: none
};

/// Reads a config file, applies `--set path=value` overrides in order, fills in defaults, checks everything
/// that needs neither data nor world size, and converts. Throws ConfigError "file:line:column: field: ...".
/// `layout`, the value of --layout, replaces the whole layout of the config (layout/layout.h). `own`: a
/// program's parts, in place of the config's.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          const std::optional<std::string>& layout = {});
RunConfig parse_run_config(const std::string& text, const std::string& name,
                           const std::vector<std::string>& overrides,
                           const std::optional<std::string>& layout = {}, const OwnParts& own = {});
/// Likewise the config that a run has kept, to use its checkpoints without training: an optimizer that would
/// do nothing of its own is no reason to refuse them.
RunConfig load_kept_config(const std::string& path, const std::vector<std::string>& overrides,
                           const std::optional<std::string>& layout);

/// The model as text proto of plain layers (a `Model` of lockstep.proto, with presets and repeated blocks
/// expanded), and back. Checks what the reader of configs checks, but not shapes: make_graph does.
std::string model_to_text(const ModelSpec& model);
ModelSpec model_from_text(const std::string& text, const std::string& name);

/// A measurement as text proto (a `Profile` of lockstep.proto), to a thousandth of a microsecond, and back.
/// Throws ConfigError "name:line:column: ...".
std::string profile_to_text(const model::Profile& profile);
model::Profile profile_from_text(const std::string& text, const std::string& name);

}  // namespace lockstep::config
