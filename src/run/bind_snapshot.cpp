#include "base/ensure.h"
#include "run/bind.h"

namespace lockstep::run {

Action bind_snapshot(const Binding& binding) {
  const program::Instruction& instruction = binding.instruction();
  struct Piece {
    const std::byte* source;
    int64_t size_bytes;
  };
  std::vector<Piece> pieces;
  int64_t size_bytes = 0;
  for (const auto& operand : instruction.operands) {
    if (operand.role != program::Role::parameters && operand.role != program::Role::state &&
        operand.role != program::Role::residual)
      continue;
    pieces.push_back({binding.at(operand), operand.range.size_bytes});
    size_bytes += pieces.back().size_bytes;
  }
  const program::Operand* destination = binding.find(program::Role::destination, 0);
  ensure(size_bytes == (destination == nullptr ? 0 : destination->range.size_bytes),
         "a snapshot has room for exactly what it copies");
  std::byte* copy = binding.pointer(program::Role::destination, 0);
  auto* failures = reinterpret_cast<double*>(binding.required(program::Role::metrics, 0));
  auto outcome =
      std::make_shared<device::Buffer>(binding.context().device.allocate_host(program::kMetricBytes));
  return {.start = [=, pieces = std::move(pieces), save = binding.context().snapshot](
                       device::Stream& stream, const StepInputs&, const auto&) {
    std::byte* to = copy;
    for (const auto& piece : pieces) {
      stream.copy(to, piece.source, piece.size_bytes);
      to += piece.size_bytes;
    }
    stream.synchronize();
    reinterpret_cast<double*>(outcome->data())[0] = save() ? 0 : 1;
    stream.copy(failures, outcome->data(), program::kMetricBytes);
  }};
}

}  // namespace lockstep::run
