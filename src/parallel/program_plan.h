#pragma once

#include <vector>

#include "device/device.h"
#include "layout/batch_division.h"
#include "layout/norm_chunks.h"
#include "layout/ownership.h"
#include "parallel/parallel_options.h"
#include "program/segment_code.h"

namespace lockstep::parallel {

/// Scratch with which updates work on a whole parameter (program/matrix_scratch.h), by parameter; 0: element
/// by element. Lists are empty if no parameter is updated so.
struct WholeScratch {
  std::vector<int64_t> of_workers, of_servers;
};

/// Everything that determines the programs of replicas, stages and servers. Programs are pure functions of it
/// and of the rank.
struct ProgramPlan {
  const model::Graph& graph;
  const model::Partition& partition;
  const program::ModelCode& training;    ///< kernels and layouts of forward and backward
  const program::ModelCode& evaluation;  ///< of forward alone
  layout::BatchDivision division;
  ParallelOptions parallel;
  const layout::Ownership& ownership;
  std::vector<std::vector<layout::SavedPart>> shares = {};  ///< of a checkpoint, by rank
  int state_slots = 0;
  std::vector<int> hosts = {};                          ///< by rank, if the layout needs them
  bool shared_memory = false;                           ///< all workers share a host's memory
  device::DeviceKind device = device::DeviceKind::cpu;  ///< of workers; on GPUs FAST sums are the library's
  bool skip_nonfinite = true;       ///< updates write nothing if loss or gradients are not finite
  bool digests_parameters = false;  ///< so that replicas can be compared if every step overwrites them
  bool update_as_it_lands = false;  ///< neither clipping nor a check for non-finite gradients needs a
                                    ///< whole-step verdict, nor an update what is measured
  layout::Measures measures = {};   ///< what updates need besides gradients
  WholeScratch whole_scratch = {};

  /// Whether gradients are rounded to a narrower type before they are summed: under FAST if they cross to
  /// other ranks; under REPRODUCIBLE always, since bits do not depend on the layout.
  bool narrows_gradients() const {
    const bool crosses = division.workers > 1 || ownership.has_servers();
    return parallel.wire != DType::float32 &&
           (crosses || parallel.reduction == layout::Reduction::reproducible);
  }
  /// Whether workers keep what these roundings lose.
  bool keeps_residuals() const { return parallel.error_feedback && narrows_gradients(); }
  /// The leaves that a worker computes.
  layout::TreeNode leaves_of(int worker) const { return division.leaves_of(ownership.replica_of(worker)); }
  /// Whether ranks that only serve compute on their hosts' processors, beside workers on GPUs.
  bool servers_are_apart() const {
    return device == device::DeviceKind::cuda && ownership.has_servers() && !parallel.servers_on_gpus;
  }
  /// Of a rank, by parameter.
  const std::vector<int64_t>& whole_scratch_of(int rank) const {
    return ownership.is_worker(rank) ? whole_scratch.of_workers : whole_scratch.of_servers;
  }
  device::DeviceKind device_of(int rank) const {
    return servers_are_apart() && !ownership.is_worker(rank) ? device::DeviceKind::cpu : device;
  }
};

}  // namespace lockstep::parallel
