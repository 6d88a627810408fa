#pragma once

#include <memory>
#include <utility>

#include "program/operand_binding.h"
#include "run/actions.h"

namespace lockstep::run {

/// An instruction bound to device memory, from which an action is made. Borrows everything. The action takes
/// pointers from it, and never keeps the binding itself.
class Binding : public program::OperandBinding {
 public:
  Binding(const program::Program& program, const ExecutionContext& context, const KernelObserver* observer,
          std::shared_ptr<StepKernels> kernels, int index)
      : OperandBinding(program, index, address_of(program, context)),
        context_(context),
        observer_(observer),
        kernels_(std::move(kernels)) {}

  const ExecutionContext& context() const { return context_; }
  const KernelObserver* observer() const { return observer_; }
  const std::shared_ptr<StepKernels>& kernels() const { return kernels_; }
  comm::Communicator* communicator() const;

 private:
  static program::AddressOf address_of(const program::Program& program, const ExecutionContext& context) {
    return [&program, &memory = context.memory](const program::ByteRange& range) {
      return memory.at(program, range);
    };
  }

  const ExecutionContext& context_;
  const KernelObserver* observer_;
  std::shared_ptr<StepKernels> kernels_;
};

}  // namespace lockstep::run
