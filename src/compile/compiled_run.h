#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/graph.h"
#include "model/partition.h"
#include "layout/batch_division.h"
#include "parallel/data_parallel.h"
#include "parallel/options.h"
#include "layout/placement.h"
#include "program/memory/memory_plan.h"
#include "program/segment_code.h"

namespace lockstep {

/// What a run's programs say: the parts of a config on which they depend, and nothing else of it.
struct CompileOptions {
  ModelSpec model;
  DType storage = DType::float32;  ///< of activations, their gradients and copies of weights
  bool tf32 = false;
  bool fused_gelu = false;
  int64_t global_batch = 0;  ///< samples of an optimizer step, over all workers
  int64_t micro_batch = 0;   ///< upper bound of samples; 0: the whole leaf
  int virtual_replicas = 1;  ///< leaves of the gradient tree under REPRODUCIBLE
  ParallelOptions parallel;
  int state_slots = 0;  ///< of the optimizer
  bool clips_gradients = false;
  bool skips_nonfinite = true;  ///< updates write nothing if the loss or gradients are not finite
};

/// What they depend on beside the config: the processes of the job, and what these share and compute on.
struct CompileFacts {
  int world_size = 1;
  bool shared_memory = false;           ///< all workers share a host's memory: the programs may count on it
  DeviceKind device = DeviceKind::cpu;  ///< cpu or cuda
};

/// The programs of a run and what they are compiled from: pure functions of options and facts, without data,
/// devices, communication or a trainer. What `lockstep inspect` shows and what every rank executes its part
/// of. A rank compiles its own programs; one of them proves those of all.
class CompiledRun {
 public:
  /// Throws ConfigError if they do not fit together.
  CompiledRun(const CompileOptions& options, const CompileFacts& facts);
  CompiledRun(const CompiledRun&) = delete;  // programs refer to the graph and code inside

  /// Programs of one rank, with placed buffers.
  struct RankPrograms {
    Program step, evaluate, boundary;
    MemoryPlan step_plan, evaluate_plan, boundary_plan;
  };
  RankPrograms compile(int rank) const;
  /// Proves all ranks' programs; throws InternalError with what is wrong.
  void check() const;
  /// Of everything that compile() is a function of but the rank: equal on all ranks of a job exactly if each
  /// of them would compile the same programs for all ranks (given equal binaries).
  uint64_t program_hash() const { return program_hash_; }

  const Layout& layout() const { return plan_->parallel.layout; }  ///< resolved
  const Graph& graph() const { return graph_; }
  const Partition& partition() const { return partition_; }
  const BatchDivision& division() const { return plan_->division; }
  DeviceKind device() const { return plan_->device; }
  /// Makes what kernels need of a device. Once, before they run; nothing else needs it.
  void prepare(Device& device);
  const ModelCode& training_code() const { return *training_; }
  const ModelCode& evaluation_code() const { return *evaluation_; }
  int state_slot_count() const { return plan_->state_slots; }
  const Placement& placement() const { return *placement_; }
  /// By worker, what it saves of a checkpoint.
  const std::vector<std::vector<SavedPart>>& checkpoint_shares() const { return plan_->shares; }

 private:
  Graph graph_;
  Partition partition_;
  std::unique_ptr<ModelCode> training_, evaluation_;
  std::unique_ptr<Placement> placement_;
  std::unique_ptr<DataParallelPlan> plan_;
  uint64_t program_hash_ = 0;
};

}  // namespace lockstep
