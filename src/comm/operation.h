#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

enum class OperationKind { all_reduce, all_gather, broadcast, exchange, barrier, split };
std::string_view name_of(OperationKind kind);
std::string_view name_of(ReduceOp op);

/// One call of a communicator as a value, which backends queue, compare between ranks, and quote in errors.
struct Operation {
  OperationKind kind;
  void* data = nullptr;
  int64_t count = 0;  ///< elements (all_reduce) or bytes; of one block if there are blocks
  DType dtype = DType::uint8;
  ReduceOp reduce_op = ReduceOp::sum;
  int root = -1;                    ///< broadcast only
  std::vector<Transfer> transfers;  ///< exchange only

  int64_t block_bytes() const { return count * size_of(dtype); }
};

/// "all_reduce of 1024 float32 (sum)", "exchange (16 bytes to rank 1, 8 bytes from rank 2)".
std::string describe(const Operation& operation);

/// Throws CommError if a rank, size or element type is invalid. `rank` and `size` are the caller's. `halves`:
/// whether reductions of bfloat16 and float16 are valid.
void validate(const Operation& operation, int rank, int size, bool halves);

/// "receive from rank 3", as errors name a transfer.
std::string describe(const Transfer& transfer);

}  // namespace lockstep::comm
