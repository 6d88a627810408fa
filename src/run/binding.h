#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "run/actions.h"

namespace lockstep::run {

inline constexpr int64_t kMetricBytes = ops::kMetricCount * sizeof(double);

/// One instruction on its way to an action: finds what its operands are and where they lie, and refuses what
/// does not fit. Borrows everything; the action that is made takes pointers from here, and never the binding
/// itself.
class Binding {
 public:
  Binding(const program::Program& program, const ExecutionContext& context, const KernelObserver* observer,
          std::shared_ptr<StepKernels> kernels, int index)
      : program_(program),
        context_(context),
        observer_(observer),
        kernels_(std::move(kernels)),
        index_(index) {}

  const program::Program& program() const { return program_; }
  const program::Instruction& instruction() const { return program_.instruction(index_); }
  int index() const { return index_; }
  const ExecutionContext& context() const { return context_; }
  const KernelObserver* observer() const { return observer_; }
  const std::shared_ptr<StepKernels>& kernels() const { return kernels_; }
  /// How messages name the instruction.
  std::string describe() const { return program::describe(program_, index_); }

  /// The operand of this role, or null where there is none. REQUIRES: there is at most one.
  const program::Operand* find(program::Role role) const;
  const program::Operand* find(program::Role role, int index) const;
  const program::Operand* required_operand(program::Role role) const;
  std::byte* at(const program::Operand& operand) const { return context_.memory.at(program_, operand.range); }
  /// Where an operand lies, or null where the instruction has none of that kind.
  std::byte* pointer(program::Role role, int index) const;
  std::byte* required(program::Role role, int index) const;
  /// Where an operand of just this many bytes, of this type, lies.
  std::byte* exactly(program::Role role, int index, int64_t size_bytes, DType dtype) const;
  /// Refuses an instruction whose memory of this role is smaller than this; none where 0 bytes are needed.
  void at_least(program::Role role, int64_t size_bytes) const;
  void at_least(program::Role role, int index, int64_t size_bytes) const;
  /// Where bytes lie that one of the instruction's operands must hold.
  std::byte* in_operand(program::Role role, DType dtype, const program::ByteRange& bytes) const;
  /// Where a gradient lies that the instruction writes into its segment's bucket.
  std::byte* in_bucket(const program::ParameterPlace::Use& use, int64_t size_bytes) const;
  comm::Communicator* communicator() const;

 private:
  const program::Program& program_;
  const ExecutionContext& context_;
  const KernelObserver* observer_;
  std::shared_ptr<StepKernels> kernels_;
  int index_;
};

/// Whether `outer` has all bytes of `inner`.
bool holds(const program::ByteRange& outer, const program::ByteRange& inner);

}  // namespace lockstep::run
