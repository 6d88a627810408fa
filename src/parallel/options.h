#pragma once

#include <cstdint>

#include "step/program.h"

namespace lockstep {

enum class SyncKind { all_reduce };

/// How gradients are summed: FAST by the library's all-reduce or a ring written into the program, REPRODUCIBLE by a tree
/// written into the program, both through memory that the workers of one host share.
enum class AllReduceAlgorithm { automatic, library, ring, shared_memory, tree };

struct ParallelOptions {
  SyncKind sync = SyncKind::all_reduce;
  Reduction reduction = Reduction::fast;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;
  int64_t bucket_bytes = 1 << 20;
  bool shard_optimizer = false;        ///< each worker updates a part of the parameters, and holds the state of that alone
  int data_parallel = 0;               ///< 0: world size; otherwise checked against it
  int intra_op_threads = 1;            ///< part of the arithmetic
  bool operator==(const ParallelOptions&) const = default;
};

}  // namespace lockstep
