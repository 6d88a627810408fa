#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "program/program.h"

namespace lockstep::program {

/// The address of bytes of a program's buffers.
using AddressOf = std::function<std::byte*(const ByteRange&)>;

/// Binds one instruction to memory: finds the addresses of its operands, and refuses operands that do not fit
/// by InternalErrors that name the instruction. Borrows the program.
class OperandBinding {
 public:
  OperandBinding(const Program& program, int index, AddressOf address_of)
      : program_(program), index_(index), address_of_(std::move(address_of)) {}

  const Program& program() const { return program_; }
  const Instruction& instruction() const { return program_.instruction(index_); }
  int index() const { return index_; }
  /// How messages name the instruction.
  std::string describe() const { return program::describe(program_, index_); }

  /// The operand of this role, or null if there is none. REQUIRES: there is at most one.
  const Operand* find(Role role) const;
  const Operand* find(Role role, int index) const;
  const Operand* required_operand(Role role) const;
  std::byte* at(const Operand& operand) const { return address_of_(operand.range); }
  /// The address of an operand, or null if the instruction has none of that kind.
  std::byte* pointer(Role role, int index) const;
  std::byte* required(Role role, int index) const;
  /// The address of an operand of exactly this many bytes and this type.
  std::byte* exactly(Role role, int index, int64_t size_bytes, DType dtype) const;
  /// Refuses an instruction whose memory of this role is smaller than this; 0 bytes need no operand.
  void at_least(Role role, int64_t size_bytes) const;
  void at_least(Role role, int index, int64_t size_bytes) const;
  /// The address of bytes that one of the instruction's operands must hold.
  std::byte* in_operand(Role role, DType dtype, const ByteRange& bytes) const;
  /// The address of a gradient that the instruction writes into its segment's bucket.
  std::byte* in_bucket(const ParameterPlace::Use& use, int64_t size_bytes) const;

 private:
  const Program& program_;
  int index_;
  AddressOf address_of_;
};

/// Whether `outer` contains all bytes of `inner`.
bool holds(const ByteRange& outer, const ByteRange& inner);

}  // namespace lockstep::program
