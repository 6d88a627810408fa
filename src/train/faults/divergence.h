#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/named_tensor.h"
#include "comm/communicator.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Compares data-parallel replicas: parameters, statistics and, unless each rank has a part of its own,
/// optimizer state of all ranks hold the same bits between two steps, unless memory or a processor has erred.
/// Where each rank updates a part of the parameters, and every step writes what owners sent over what the
/// others hold, it is compared also what a step has read before that (see_step).
/// Borrows the worker and its memory; only what tensors hold counts, not the gaps between them. Not
/// thread-safe.
class ReplicaComparison {
 public:
  /// `worker` must outlive it. A rank without a replica takes part in what is collective.
  explicit ReplicaComparison(const Worker& worker);

  /// Of all tensors as they are now, at the speed of memory; never 0 but on a server. What
  /// locate() compares first is what this saw last.
  uint64_t hash();
  /// Of the parameters that the last step has read, if its program says; otherwise 0. To be called after
  /// every step.
  uint64_t see_step();
  /// COLLECTIVE: whether all ranks that hold a tensor hold the same bits, and what the last step that was
  /// seen has read was the same, of stages that share tensors included.
  bool all_equal(comm::Communicator& world);
  /// COLLECTIVE: the lines that tell where the replicas differed in the last step that was seen, or else at
  /// the last hash(): the ranks that do not hold what most hold (where no more than half agree, all that
  /// differ), how many tensors, and of the first tensor the first element with both values; "" where no
  /// tensor differs. The same text on all ranks. REQUIRES: hash() was called on all ranks.
  std::string locate(comm::Communicator& world) const;
  /// COLLECTIVE: likewise, where what the last step that was seen has read differed; "" where it did not, or
  /// where steps do not tell.
  std::string locate_read(comm::Communicator& world) const;

 private:
  /// Of every rank's, those of the replicas of a stage, which hold the same; the others' are empty.
  std::vector<std::vector<uint64_t>> of_stage(const std::vector<std::vector<uint64_t>>& all, int stage) const;
  std::string locate_read(const std::vector<std::string>& hosts,
                          const std::vector<std::vector<uint64_t>>& digests) const;
  /// For the host to read; without data where this rank does not hold it.
  checkpoint::NamedTensor shown_here(size_t tensor) const;
  /// COLLECTIVE: `hashes`: by rank, of ranks that should hold the same; the others' are empty.
  std::string locate(comm::Communicator& world, const std::vector<std::string>& hosts,
                     const std::vector<std::vector<uint64_t>>& hashes) const;

  const Worker& worker_;
  std::vector<checkpoint::NamedTensor> tensors_;  // of the model, on all ranks alike; data of what lies here
  std::vector<uint64_t> hashes_;                  // by tensor, as of the last hash()
  std::vector<uint64_t> digests_;                 // by chunk, of the last step that was seen
};

}  // namespace lockstep::train
