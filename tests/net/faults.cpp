#include "net/faults.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "program/segment_binding.h"
#include "proof/call_proof.h"

#define LOCKSTEP_ENSURE_CALLS "_ZN8lockstep5proof12ensure_callsERKNS_7program7ProgramERNS0_9CallProofE"
#define LOCKSTEP_BIND_SEGMENT "_ZN8lockstep7program12bind_segmentERKNS0_14OperandBindingERKNS0_9ModelCodeE"

namespace lockstep::net {

using program::KernelCall;
using Calls = std::vector<KernelCall>;

Calls bind_right(const program::OperandBinding& operands,
                 const program::ModelCode& code) asm("__real_" LOCKSTEP_BIND_SEGMENT);
Calls bind_wrong(const program::OperandBinding& operands,
                 const program::ModelCode& code) asm("__wrap_" LOCKSTEP_BIND_SEGMENT);

void ensure_right(const program::Program& program,
                  proof::CallProof& proof) asm("__real_" LOCKSTEP_ENSURE_CALLS);
void ensure_or_not(const program::Program& program,
                   proof::CallProof& proof) asm("__wrap_" LOCKSTEP_ENSURE_CALLS);

namespace {

std::atomic<Fault> active{Fault::none};
std::atomic<bool> proven{true};

/// Memory that nothing else touches, zero at first; lives as long as the process.
std::byte* private_memory(const void* key, int64_t size_bytes) {
  static std::mutex mutex;
  static std::map<const void*, std::vector<std::byte>> all;
  const std::scoped_lock lock(mutex);
  auto& room = all[key];
  if (room.empty()) room.resize(static_cast<size_t>(size_bytes + 64));
  return room.data();
}

template <class Change>
void for_gradients(Calls& calls, const Change& change) {
  for (KernelCall& call : calls) {
    for (Tensor& tensor : call.output_gradients) change(tensor);
    for (Tensor& tensor : call.input_gradients) change(tensor);
  }
}

void lose_gradient(Calls& calls, const program::OperandBinding& operands, const program::ModelCode& code) {
  const program::Instruction& instruction = operands.instruction();
  using Kind = program::InstructionKind;
  if (instruction.kind != Kind::backward_input && instruction.kind != Kind::backward_weight) return;
  const auto& face = code.segment(instruction.segment);
  const Calls right = calls;
  for (const KernelCall& product : right) {
    const auto& node = code.graph().node(product.node);
    if (node.parameters.empty() || node.signature.backward != ops::BackwardForm::split) continue;
    const int root = code.graph().value(node.outputs[0]).gradient_storage;
    if (std::ranges::find(face.input_gradients, root) == face.input_gradients.end()) continue;
    const void* lost = product.output_gradients[0].data;
    for_gradients(calls, [&](Tensor& tensor) {
      if (tensor.data == lost && lost != nullptr) tensor.data = private_memory(lost, tensor.size_bytes());
    });
  }
}

void leave_out_call(Calls& calls, const program::OperandBinding& operands) {
  if (operands.instruction().micro_batch != 1 || calls.size() < 3) return;
  calls.erase(calls.begin() + static_cast<ptrdiff_t>(calls.size() / 2));
}

void swap_operand(Calls& calls, const program::ModelCode& code) {
  for (KernelCall& call : calls) {
    const Op& op = code.graph().node(call.node).op;
    if (!std::holds_alternative<Tanh>(op) && !std::holds_alternative<Sigmoid>(op)) continue;
    if (call.phase == ops::KernelPhase::backward_input) std::swap(call.outputs[0], call.output_gradients[0]);
  }
}

bool touches(const std::vector<Tensor>& tensors, const void* data) {
  return std::ranges::any_of(tensors, [&](const Tensor& tensor) { return tensor.data == data; });
}

/// The last call that reads a gradient which an earlier one has made.
size_t last_reader(const Calls& calls, size_t made, const void* data) {
  size_t last = made;
  for (size_t reader = made + 1; reader < calls.size(); ++reader) {
    if (touches(calls[reader].output_gradients, data)) last = reader;
    if (touches(calls[reader].input_gradients, data)) break;
  }
  return last;
}

/// A gradient that is made, and read after others are, gives its memory to the first of these.
void overlap_lifetimes(Calls& calls) {
  const Calls right = calls;
  for (size_t made = 0; made < right.size(); ++made)
    for (const Tensor& kept : right[made].input_gradients) {
      if (kept.data == nullptr) continue;
      const size_t reader = last_reader(right, made, kept.data);
      for (size_t between = made + 1; between < reader; ++between)
        for (const Tensor& other : right[between].input_gradients) {
          if (other.data == nullptr || other.data == kept.data || other.size_bytes() > kept.size_bytes())
            continue;
          for_gradients(calls, [&](Tensor& tensor) {
            if (tensor.data == other.data) tensor.data = kept.data;
          });
          return;
        }
    }
}

void forget_branch(Calls& calls, const program::ModelCode& code) {
  for (KernelCall& call : calls)
    if (std::holds_alternative<Fork>(code.graph().node(call.node).op) && call.output_gradients.size() > 1) {
      Tensor& branch = call.output_gradients[1];
      branch.data = private_memory(&active, 1 << 20);
    }
}

}  // namespace

void set_fault(Fault fault, bool proves_calls) {
  active = fault;
  proven = proves_calls;
}

void ensure_or_not(const program::Program& program, proof::CallProof& proof) {
  if (proven) ensure_right(program, proof);
}

Calls bind_wrong(const program::OperandBinding& operands, const program::ModelCode& code) {
  Calls calls = bind_right(operands, code);
  switch (active) {
    case Fault::none:
      break;
    case Fault::lost_gradient:
      lose_gradient(calls, operands, code);
      break;
    case Fault::left_out_call:
      leave_out_call(calls, operands);
      break;
    case Fault::swapped_operand:
      swap_operand(calls, code);
      break;
    case Fault::overlapped_lifetime:
      overlap_lifetimes(calls);
      break;
    case Fault::forgotten_branch:
      forget_branch(calls, code);
      break;
  }
  return calls;
}

}  // namespace lockstep::net
