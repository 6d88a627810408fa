#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/named_tensor.h"
#include "comm/communicator.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Compares data-parallel replicas. Between two steps parameters, statistics and, unless it is split,
/// optimizer state have the same bits on all ranks, unless memory or a processor has erred. If each rank
/// updates a part of the parameters, every step overwrites copies with the owner's values; then it also
/// compares what a step has read before that (see_step). Borrows the worker and its memory. Only tensors
/// count, not the gaps between them. Not thread-safe.
class ReplicaComparison {
 public:
  /// `worker` must outlive it. A rank without a replica takes part in collective calls.
  explicit ReplicaComparison(const Worker& worker);

  /// The hash of all tensors now, at the speed of memory; 0 only on a server. locate() first compares the
  /// hashes of the last call.
  uint64_t hash();
  /// The hash of the parameters that the last step has read, if its program has digests; otherwise 0. Call it
  /// after every step.
  uint64_t see_step();
  /// COLLECTIVE: whether all ranks that hold a tensor hold the same bits, and have read the same in the last
  /// step seen. This includes stages that share tensors.
  bool all_equal(comm::Communicator& world);
  /// COLLECTIVE: lines that say where the replicas differed in the last step seen, or else at the last
  /// hash(): the ranks that differ from the majority (all that differ, if there is none), the number of
  /// tensors, and the first element of the first tensor with both values. "" if no tensor differs. The same
  /// text on all ranks. REQUIRES: hash() was called on all ranks.
  std::string locate(comm::Communicator& world) const;
  /// COLLECTIVE: the same for what the last step seen has read; "" if it did not differ, or if steps have no
  /// digests.
  std::string locate_read(comm::Communicator& world) const;

 private:
  /// Of all ranks' values, those of the replicas of a stage, which hold the same; the others are empty.
  std::vector<std::vector<uint64_t>> of_stage(const std::vector<std::vector<uint64_t>>& all, int stage) const;
  std::string locate_read(const std::vector<std::string>& hosts,
                          const std::vector<std::vector<uint64_t>>& digests) const;
  /// A tensor for the host to read; without data if this rank does not hold it.
  checkpoint::NamedTensor shown_here(size_t tensor) const;
  /// COLLECTIVE. `hashes`: by rank, of ranks that should hold the same; empty for the others.
  std::string locate(comm::Communicator& world, const std::vector<std::string>& hosts,
                     const std::vector<std::vector<uint64_t>>& hashes) const;

  const Worker& worker_;
  std::vector<checkpoint::NamedTensor> tensors_;  // of the model, on all ranks alike; data of what lies here
  std::vector<uint64_t> hashes_;                  // by tensor, as of the last hash()
  std::vector<uint64_t> digests_;                 // by chunk, of the last step that was seen
};

}  // namespace lockstep::train
