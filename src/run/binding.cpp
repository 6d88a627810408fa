#include "run/binding.h"

#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::run {

bool holds(const program::ByteRange& outer, const program::ByteRange& inner) {
  return outer.buffer == inner.buffer && inner.offset >= outer.offset &&
         inner.offset + inner.size_bytes <= outer.offset + outer.size_bytes;
}

const program::Operand* Binding::find(program::Role role) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role) return &operand;
  return nullptr;
}

const program::Operand* Binding::find(program::Role role, int index) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

const program::Operand* Binding::required_operand(program::Role role) const {
  const program::Operand* found = find(role);
  if (found == nullptr)
    throw InternalError(fmt::format("{} has no operand '{}'", describe(), program::name_of(role)));
  return found;
}

std::byte* Binding::pointer(program::Role role, int index) const {
  const program::Operand* operand = find(role, index);
  return operand == nullptr ? nullptr : context_.memory.at(program_, operand->range);
}

std::byte* Binding::required(program::Role role, int index) const {
  std::byte* found = pointer(role, index);
  if (found == nullptr)
    throw InternalError(fmt::format("{} has no operand '{} {}'", describe(), program::name_of(role), index));
  return found;
}

std::byte* Binding::exactly(program::Role role, int index, int64_t size_bytes, DType dtype) const {
  std::byte* found = required(role, index);
  const program::Operand& operand = *find(role, index);
  if (operand.range.size_bytes != size_bytes || operand.dtype != dtype)
    throw InternalError(fmt::format("{} has an operand '{} {}' of {} bytes of {}; the model's has {} of {}",
                                    describe(), program::name_of(role), index, operand.range.size_bytes,
                                    name_of(operand.dtype), size_bytes, name_of(dtype)));
  return found;
}

void Binding::at_least(program::Role role, int64_t size_bytes) const {
  if (size_bytes > 0) at_least(role, required_operand(role)->index, size_bytes);
}

void Binding::at_least(program::Role role, int index, int64_t size_bytes) const {
  if (size_bytes == 0) return;
  required(role, index);
  if (const int64_t found = find(role, index)->range.size_bytes; found < size_bytes)
    throw InternalError(fmt::format("{} has {} bytes of '{}' and needs {}", describe(), found,
                                    program::name_of(role), size_bytes));
}

std::byte* Binding::in_operand(program::Role role, DType dtype, const program::ByteRange& bytes) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == role && operand.dtype == dtype && holds(operand.range, bytes))
      return context_.memory.at(program_, bytes);
  throw InternalError(fmt::format("{} has no operand '{}' of {} with bytes {}+{} of {}", describe(),
                                  program::name_of(role), name_of(dtype), bytes.offset, bytes.size_bytes,
                                  bytes.buffer < 0 ? "nothing" : program_.buffer(bytes.buffer).name));
}

std::byte* Binding::in_bucket(const program::ParameterPlace::Use& use, int64_t size_bytes) const {
  for (const auto& operand : instruction().operands)
    if (operand.role == program::Role::gradients && operand.dtype == DType::float32 &&
        use.segment == instruction().segment && use.bucket_offset >= operand.position &&
        use.bucket_offset + size_bytes <= operand.position + operand.range.size_bytes)
      return at(operand) + (use.bucket_offset - operand.position);
  throw InternalError(
      fmt::format("{} has no operand of float32 for the gradient at bytes {}+{} of its bucket", describe(),
                  use.bucket_offset, size_bytes));
}

comm::Communicator* Binding::communicator() const {
  comm::Communicator* found = context_.communicators.at(static_cast<size_t>(instruction().group));
  ensure(found != nullptr, "a rank communicates in groups of which it is a member");
  return found;
}

}  // namespace lockstep::run
