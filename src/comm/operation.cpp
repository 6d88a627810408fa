#include "comm/operation.h"

#include <fmt/format.h>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

bool reducible(DType dtype, bool halves) {
  if (dtype == DType::bfloat16 || dtype == DType::float16) return halves;
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::int32;
}

}  // namespace

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::exchange:
      return "exchange";
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::split:
      return "split";
  }
  return "?";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

std::string describe(const Transfer& transfer) {
  const bool send = transfer.direction == Transfer::Direction::send;
  return fmt::format("{} of {} bytes {} rank {}", send ? "send" : "receive", transfer.size_bytes,
                     send ? "to" : "from", transfer.peer);
}

std::string describe(const Operation& operation) {
  const auto name = name_of(operation.kind);
  if (operation.kind == OperationKind::all_reduce)
    return fmt::format("{} of {} {} ({})", name, operation.count, name_of(operation.dtype),
                       name_of(operation.reduce_op));
  if (operation.kind == OperationKind::all_gather)
    return fmt::format("{} of {} bytes a rank", name, operation.count);
  if (operation.kind == OperationKind::broadcast)
    return fmt::format("{} of {} bytes from rank {}", name, operation.count, operation.root);
  if (operation.kind != OperationKind::exchange) return std::string(name);
  std::vector<std::string> parts;
  constexpr size_t kMost = 8;  // an all-to-all of a thousand ranks has to fit a message
  for (size_t i = 0; i < operation.transfers.size() && i < kMost; ++i)
    parts.push_back(describe(operation.transfers[i]));
  if (operation.transfers.size() > kMost)
    parts.push_back(fmt::format("{} more", operation.transfers.size() - kMost));
  return fmt::format("{} ({})", name, parts.empty() ? "no transfers" : join(parts, ", "));
}

void validate(const Operation& operation, int rank, int size, bool halves) {
  const auto refuse = [&](std::string_view why) {
    throw CommError(fmt::format("rank {} of {} cannot start {}: {}", rank, size, describe(operation), why));
  };
  if (operation.count < 0) refuse("the count is negative");
  if (int64_t whole = 0; __builtin_mul_overflow(operation.count, size_of(operation.dtype) * size, &whole))
    refuse("the buffer would be larger than memory can be");
  if (operation.data == nullptr && operation.count > 0) refuse("the data pointer is null");
  if (operation.kind == OperationKind::all_reduce && !reducible(operation.dtype, halves))
    refuse(fmt::format(
        "dtype not supported; reductions take float32, float64 and int32{}",
        halves ? ", bfloat16 and float16" : ", and on GPUs and in shared memory bfloat16 and float16"));
  if (operation.kind == OperationKind::broadcast && (operation.root < 0 || operation.root >= size))
    refuse(fmt::format("the root must be a rank from 0 to {}", size - 1));
  for (const auto& transfer : operation.transfers) {
    if (transfer.peer < 0 || transfer.peer >= size)
      refuse(fmt::format("rank {} is not in the communicator", transfer.peer));
    if (transfer.peer == rank) refuse("a rank cannot exchange with itself");
    if (transfer.size_bytes < 0) refuse("a size is negative");
    if (transfer.data == nullptr && transfer.size_bytes > 0) refuse("the data pointer of a transfer is null");
  }
}

}  // namespace lockstep::comm
