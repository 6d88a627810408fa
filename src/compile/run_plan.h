#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/matrix_size.h"
#include "layout/batch_division.h"
#include "layout/norm_chunks.h"
#include "layout/ownership.h"
#include "model/graph.h"
#include "model/node_times.h"
#include "model/partition.h"
#include "parallel/parallel_options.h"
#include "pixels/packed_sample.h"

namespace lockstep::compile {

/// The parts of a config that determine a run's programs.
struct CompileOptions {
  std::shared_ptr<const model::Graph> graph;  ///< the model, in float32
  DType storage = DType::float32;             ///< of activations, their gradients and copies of weights
  bool tf32 = false;
  bool fused_gelu = false;
  int64_t global_batch = 0;  ///< samples of an optimizer step, over all workers
  int64_t micro_batch = 0;   ///< upper bound of samples; 0: none
  int virtual_replicas = 1;  ///< leaves of the canonical tree under REPRODUCIBLE
  parallel::ParallelOptions parallel;
  int state_slots = 0;                              ///< of the optimizer
  layout::Measures measures = {};                   ///< what its updates need besides gradients
  std::map<std::string, MatrixSize> matrices = {};  ///< parameters that it updates as matrices
  bool clips_gradients = false;
  bool compares_replicas = true;
  bool measures_noise = false;  ///< require_noise() must hold
  bool skips_nonfinite = true;  ///< updates write nothing if the loss or gradients are not finite
  /// If the input `image` comes packed (data.transforms_on): how, in training and in evaluation.
  std::optional<pixels::PackedLayout> packed_training = {}, packed_evaluation = {};
};

/// What determines programs besides the config: the job's processes, what they share, and their devices.
struct CompileFacts {
  int world_size = 1;
  bool shared_memory = false;   ///< all workers share one host's memory, and programs may use it
  std::vector<int> hosts = {};  ///< of each rank, as numbers; none: all ranks are on one host
  device::DeviceKind device = device::DeviceKind::cpu;  ///< cpu or cuda
};

/// Facts of a job that need not be there. Processes are numbered host by host, and hosts have equally many,
/// or nearly so. REQUIRES: 1 <= hosts <= processes.
CompileFacts planned_facts(int processes, int hosts, device::DeviceKind device);

/// How a run divides its batch. Kernels compute several virtual replicas at once: as many as fit the stated
/// micro-batch or, if none is stated, on CPUs as leave the largest value in a core's second cache. (A small
/// convolutional network of 64 images was a fifth faster so.) What is fast on GPUs has not been measured, so
/// there only a stated micro-batch joins them. REQUIRES: `layout` is resolved.
layout::BatchDivision divide_batch(const CompileOptions& options, const layout::Layout& layout,
                                   const model::Graph& graph, device::DeviceKind device);

/// Times of a micro-batch by node: in seconds by the profile, or estimated if there is none.
std::vector<model::NodeTime> times_of(const model::Graph& graph, const parallel::ParallelOptions& parallel,
                                      int64_t micro_batch);

/// What a run is, before any program is written: who computes which part of the model on which part of the
/// batch, and who holds and updates which parameters.
struct RunPlan {
  CompileOptions options;  ///< as stated, with the layout resolved
  CompileFacts facts;
  model::Graph graph;  ///< in the type of storage
  layout::BatchDivision division = {};
  model::Partition partition = {};
  layout::OwnershipOptions owning = {};
  std::vector<int> hosts = {};  ///< by rank, if the layout needs them

  const layout::Layout& layout() const { return options.parallel.layout; }
};

/// A pure function. Throws ConfigError if options and facts do not fit together; what it says is the same in
/// `config check`, `inspect`, `train` and `compare`.
RunPlan plan_run(const CompileOptions& options, const CompileFacts& facts);

/// Throws ConfigError if the run cannot measure the gradient noise scale: all of a step is one micro-batch,
/// or stages share parameters.
void require_noise(const RunPlan& plan);

/// Throws what plan_run() does in a job on one host that is started as the layout says. If the layout leaves
/// the number of replicas to the job, any number will do, and so will any device.
void require_plan(const CompileOptions& options);

}  // namespace lockstep::compile
