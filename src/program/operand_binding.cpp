#include "program/operand_binding.h"

#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::program {

bool holds(const ByteRange& outer, const ByteRange& inner) {
  return outer.buffer == inner.buffer && inner.offset >= outer.offset &&
         inner.offset + inner.size_bytes <= outer.offset + outer.size_bytes;
}

const Operand* OperandBinding::find(Role role) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role) return &operand;
  return nullptr;
}

const Operand* OperandBinding::find(Role role, int index) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

const Operand* OperandBinding::required_operand(Role role) const {
  const Operand* found = find(role);
  if (found == nullptr) throw InternalError(fmt::format("{} has no operand '{}'", describe(), name_of(role)));
  return found;
}

std::byte* OperandBinding::pointer(Role role, int index) const {
  const Operand* operand = find(role, index);
  return operand == nullptr ? nullptr : at(*operand);
}

std::byte* OperandBinding::required(Role role, int index) const {
  std::byte* found = pointer(role, index);
  if (found == nullptr)
    throw InternalError(fmt::format("{} has no operand '{} {}'", describe(), name_of(role), index));
  return found;
}

std::byte* OperandBinding::exactly(Role role, int index, int64_t size_bytes, DType dtype) const {
  std::byte* found = required(role, index);
  const Operand& operand = *find(role, index);
  if (operand.range.size_bytes != size_bytes || operand.dtype != dtype)
    throw InternalError(fmt::format("{} has an operand '{} {}' of {} bytes of {}; the model's has {} of {}",
                                    describe(), name_of(role), index, operand.range.size_bytes,
                                    lockstep::name_of(operand.dtype), size_bytes, lockstep::name_of(dtype)));
  return found;
}

void OperandBinding::at_least(Role role, int64_t size_bytes) const {
  if (size_bytes > 0) at_least(role, required_operand(role)->index, size_bytes);
}

void OperandBinding::at_least(Role role, int index, int64_t size_bytes) const {
  if (size_bytes == 0) return;
  required(role, index);
  if (const int64_t found = find(role, index)->range.size_bytes; found < size_bytes)
    throw InternalError(
        fmt::format("{} has {} bytes of '{}' and needs {}", describe(), found, name_of(role), size_bytes));
}

std::byte* OperandBinding::in_operand(Role role, DType dtype, const ByteRange& bytes) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role && operand.dtype == dtype && holds(operand.range, bytes))
      return address_of_(bytes);
  throw InternalError(fmt::format("{} has no operand '{}' of {} with bytes {}+{} of {}", describe(),
                                  name_of(role), lockstep::name_of(dtype), bytes.offset, bytes.size_bytes,
                                  bytes.buffer < 0 ? "nothing" : program_.buffer(bytes.buffer).name));
}

std::byte* OperandBinding::in_bucket(const ParameterPlace::Use& use, int64_t size_bytes) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == Role::gradients && operand.dtype == DType::float32 &&
        use.segment == instruction().segment && use.bucket_offset >= operand.position &&
        use.bucket_offset + size_bytes <= operand.position + operand.range.size_bytes)
      return at(operand) + (use.bucket_offset - operand.position);
  throw InternalError(
      fmt::format("{} has no operand of float32 for the gradient at bytes {}+{} of its bucket", describe(),
                  use.bucket_offset, size_bytes));
}

}  // namespace lockstep::program
