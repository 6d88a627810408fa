#include "proof/call_proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "program/segment_binding.h"
#include "program/step_scalars.h"
#include "proof/call_accesses.h"

namespace lockstep::proof {
namespace {

int64_t address_of(const void* data) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)); }

/// The buffers of an instruction one behind the other, apart from each other and from address 0.
std::map<int, int64_t> addresses_of(const program::Program& program,
                                    const program::Instruction& instruction) {
  constexpr int64_t kGap = 4096;
  std::map<int, int64_t> addresses;
  int64_t next = kGap;
  for (const program::Operand& operand : instruction.operands)
    if (addresses.emplace(operand.range.buffer, next).second)
      next += (program.buffer(operand.range.buffer).size_bytes + 2 * kGap) / kGap * kGap;
  return addresses;
}

uint64_t hash_of_places(const program::Program& program) {
  uint64_t hash = 0;
  const auto add = [&](auto part) { hash = hash_combine(hash, static_cast<uint64_t>(part)); };
  for (const program::ParameterPlace& place : program.parameters) {
    for (const int64_t part :
         {int64_t{place.buffer}, place.offset, place.size_bytes, place.held.first(), place.held.columns(),
          place.held.rows(), place.held.pitch(), int64_t{place.narrow_buffer}, place.narrow_offset})
      add(part);
    for (const auto& use : place.uses) {
      add(use.segment);
      add(use.bucket_offset);
    }
  }
  return hash;
}

std::string name_of(const program::Operand& operand) {
  const bool is_one_of_a_kind = operand.role == program::Role::metrics ||
                                operand.role == program::Role::constants ||
                                operand.role == program::Role::temporary;
  const std::string_view role = lockstep::program::name_of(operand.role);
  return is_one_of_a_kind ? std::string(role) : fmt::format("{} {}", role, operand.index);
}

CallMemory::Kind kind_of(const program::Operand& operand) {
  if (operand.role == program::Role::temporary) return CallMemory::Kind::scratch;
  switch (operand.access) {
    case program::Access::read:
      return CallMemory::Kind::read;
    case program::Access::write:
      return CallMemory::Kind::written;
    case program::Access::read_write:
      return CallMemory::Kind::updated;
  }
  return CallMemory::Kind::read;
}

std::string_view name_of(ops::KernelPhase phase) {
  switch (phase) {
    case ops::KernelPhase::forward:
      return "forward";
    case ops::KernelPhase::backward_input:
      return "the gradients of inputs";
    case ops::KernelPhase::backward_weight:
      return "the gradients of parameters";
  }
  return "";
}

bool is_same_place(const CallAccess& a, const CallAccess& b) {
  return a.data == b.data && a.size_bytes == b.size_bytes;
}

/// Whether what a call writes or spoils lies beside all else that it touches, but for what it replaces.
bool are_apart(const CallAccesses& accesses) {
  std::vector<CallAccess> touched = accesses.writes;
  touched.push_back(accesses.workspace);
  const size_t changed = touched.size();
  touched.insert(touched.end(), accesses.reads.begin(), accesses.reads.end());
  const auto overlap = [](const CallAccess& a, const CallAccess& b) {
    const bool exist = a.data != nullptr && b.data != nullptr && a.size_bytes > 0 && b.size_bytes > 0;
    return exist && address_of(a.data) < address_of(b.data) + b.size_bytes &&
           address_of(b.data) < address_of(a.data) + a.size_bytes;
  };
  for (size_t a = 0; a < changed; ++a)
    for (size_t b = a + 1; b < touched.size(); ++b) {
      const bool replaces = touched[a].in_place && b >= changed && is_same_place(touched[a], touched[b]);
      if (overlap(touched[a], touched[b]) && !replaces) return false;
    }
  return true;
}

/// What a call has read where it writes its result in place.
CallSymbol replaced_by(const CallAccess& write, const CallAccesses& accesses) {
  for (const CallAccess& read : accesses.reads)
    if (write.in_place && is_same_place(write, read)) return read.symbol;
  return {};
}

}  // namespace

CallProof::CallProof(const program::ModelCode& code) : code_(code), symbols_(code.graph()) {}

std::vector<std::string> CallProof::check(const program::Program& program) {
  std::vector<std::string> faults;
  places_ = hash_of_places(program);
  left_by_.clear();
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const program::Instruction& instruction = program.instruction(i);
    if (!program::runs_segment(instruction.kind)) continue;
    if (const uint64_t shape = shape_of(instruction); !proven_.insert(shape).second) {
      note_stashes(instruction, shape);
      continue;
    }
    const auto found = check(program, i, calls_of(program, i));
    faults.insert(faults.end(), found.begin(), found.end());
  }
  return faults;
}

std::vector<std::string> CallProof::check(const program::Program& program, int instruction,
                                          const std::vector<program::KernelCall>& calls) {
  const program::OperandBinding operands = operands_of(program, instruction);
  CallMemory memory(symbols_);
  enter(operands, memory);
  std::vector<std::string> faults;
  const program::ModelCode& code = code_.of_replicas(operands.instruction().leaves);
  for (const program::KernelCall& call : calls) run(call, code, memory, faults);
  check_written(operands, memory, faults);
  const uint64_t shape = shape_of(operands.instruction());
  for (const program::Operand& operand : operands.instruction().operands)
    if (operand.role == program::Role::stash && program::writes(operand.access))
      contents_[{shape, operand.index}] =
          memory.contents(address_of(operands.at(operand)), operand.range.size_bytes);
  note_stashes(operands.instruction(), shape);
  for (std::string& fault : faults) fault = fmt::format("{}: {}", operands.describe(), fault);
  return faults;
}

std::vector<program::KernelCall> CallProof::calls_of(const program::Program& program, int instruction) const {
  return program::bind_segment(operands_of(program, instruction), code_);
}

program::OperandBinding CallProof::operands_of(const program::Program& program, int instruction) const {
  return {
      program, instruction,
      [addresses = addresses_of(program, program.instruction(instruction))](const program::ByteRange& range) {
        return reinterpret_cast<std::byte*>(addresses.at(range.buffer) + range.offset);
      }};
}

void CallProof::enter(const program::OperandBinding& operands, CallMemory& memory) const {
  for (const program::Operand& operand : operands.instruction().operands) {
    const int64_t address = address_of(operands.at(operand)), size_bytes = operand.range.size_bytes;
    memory.add_region(name_of(operand), address, size_bytes, kind_of(operand));
    if (!program::reads(operand.access)) continue;
    switch (operand.role) {
      case program::Role::input:
      case program::Role::output:
        memory.fill(address, size_bytes, symbols_.activation(operand.index));
        break;
      case program::Role::output_gradient:
        memory.fill(address, size_bytes, symbols_.gradient(operand.index));
        break;
      case program::Role::constants:
        memory.fill(address, size_bytes, {CallSymbol::Kind::constants});
        break;
      case program::Role::parameters:
        enter_parameters(operands, operand, memory);
        break;
      case program::Role::stash:
        if (const auto writer = left_by_.find({operand.range.buffer, operand.range.offset});
            writer != left_by_.end())
          if (const auto left = contents_.find({writer->second, operand.index}); left != contents_.end())
            memory.fill(address, left->second);
        break;
      default:
        break;
    }
  }
}

void CallProof::enter_parameters(const program::OperandBinding& operands, const program::Operand& operand,
                                 CallMemory& memory) const {
  const int64_t address = address_of(operands.at(operand)) - operand.range.offset;
  const auto& places = operands.program().parameters;
  for (int p = 0; p < static_cast<int>(places.size()); ++p) {
    const program::ParameterPlace& place = nth(places, p);
    const bool narrow = operand.range.buffer == place.narrow_buffer;
    const program::ByteRange bytes = narrow ? place.narrow_range(operand.dtype) : place.held_range();
    if (place.is_held_whole() && program::holds(operand.range, bytes))
      memory.fill(address + bytes.offset, bytes.size_bytes,
                  {narrow ? CallSymbol::Kind::narrow_parameter : CallSymbol::Kind::parameter, p});
  }
}

void CallProof::run(const program::KernelCall& call, const program::ModelCode& code, CallMemory& memory,
                    std::vector<std::string>& faults) const {
  const CallAccesses accesses = accesses_of(symbols_, code, call);
  const auto fail = [&](std::string_view does, const CallAccess& access, const std::string& fault) {
    if (!fault.empty())
      faults.push_back(fmt::format("the call of '{}' ({}) {} {} at {}, but {}",
                                   code_.graph().node(call.node).name, name_of(call.phase), does,
                                   symbols_.text(access.symbol),
                                   memory.place(address_of(access.data), access.size_bytes), fault));
  };
  if (!are_apart(accesses))
    faults.push_back(fmt::format("the call of '{}' ({}) writes over what it reads, writes or works in",
                                 code_.graph().node(call.node).name, name_of(call.phase)));
  for (const CallAccess& read : accesses.reads)
    fail("reads", read, memory.read(address_of(read.data), read.size_bytes, read.symbol));
  if (const CallAccess& workspace = accesses.workspace; workspace.size_bytes > 0)
    fail("leaves", workspace, memory.spoil(address_of(workspace.data), workspace.size_bytes));
  for (const CallAccess& write : accesses.writes)
    fail("writes", write,
         memory.write(address_of(write.data), write.size_bytes, write.symbol, replaced_by(write, accesses)));
}

void CallProof::check_written(const program::OperandBinding& operands, CallMemory& memory,
                              std::vector<std::string>& faults) const {
  for (const program::Operand& operand : operands.instruction().operands) {
    if (!program::writes(operand.access)) continue;
    CallSymbol symbol;
    switch (operand.role) {
      case program::Role::output:
        symbol = symbols_.activation(operand.index);
        break;
      case program::Role::input_gradient:
        symbol = symbols_.gradient(operand.index);
        break;
      case program::Role::metrics:
        symbol = {CallSymbol::Kind::metrics};
        break;
      case program::Role::gradients:
        check_gradients(operands, operand, memory, faults);
        continue;
      default:  // stashes show in who reads them, temporaries in nothing
        continue;
    }
    if (const std::string fault =
            memory.read(address_of(operands.at(operand)), operand.range.size_bytes, symbol);
        !fault.empty())
      faults.push_back(fmt::format("it declares that it writes {} as {}, but {}", symbols_.text(symbol),
                                   name_of(operand), fault));
  }
}

void CallProof::check_gradients(const program::OperandBinding& operands, const program::Operand& operand,
                                CallMemory& memory, std::vector<std::string>& faults) const {
  const auto& places = operands.program().parameters;
  const auto check_use = [&](int p, int u) {
    const program::ParameterPlace::Use& use = nth(nth(places, p).uses, u);
    const int64_t begin = use.bucket_offset - operand.position, size_bytes = nth(places, p).size_bytes;
    if (use.bucket_offset == program::kNoGradient || use.segment != operands.instruction().segment ||
        begin + size_bytes <= 0 || begin >= operand.range.size_bytes)
      return;
    const CallSymbol symbol{CallSymbol::Kind::parameter_gradient, p, u};
    if (const std::string fault = memory.read(address_of(operands.at(operand)) + begin, size_bytes, symbol);
        !fault.empty())
      faults.push_back(fmt::format("it declares that it writes {} to its bucket from byte {} on, but {}",
                                   symbols_.text(symbol), use.bucket_offset, fault));
  };
  for (int p = 0; p < static_cast<int>(places.size()); ++p)
    for (int u = 0; u < static_cast<int>(nth(places, p).uses.size()); ++u) check_use(p, u);
}

uint64_t CallProof::shape_of(const program::Instruction& instruction) const {
  uint64_t shape = places_;
  const auto add = [&](auto part) { shape = hash_combine(shape, static_cast<uint64_t>(part)); };
  add(instruction.kind);
  add(instruction.segment);
  add(instruction.accumulate);
  add(instruction.leaves);
  for (const program::Operand& operand : instruction.operands) {
    add(operand.role);
    add(operand.index);
    add(operand.access);
    add(operand.dtype);
    add(operand.position);
    add(operand.range.size_bytes);
    // What a buffer of parameters holds depends on which it is, and a stash on who has written it.
    if (operand.role == program::Role::parameters) {
      add(operand.range.buffer);
      add(operand.range.offset);
    } else if (operand.role == program::Role::stash && program::reads(operand.access)) {
      const auto found = left_by_.find({operand.range.buffer, operand.range.offset});
      add(found == left_by_.end() ? 0 : found->second);
    }
  }
  return shape;
}

void CallProof::note_stashes(const program::Instruction& instruction, uint64_t shape) {
  for (const program::Operand& operand : instruction.operands)
    if (operand.role == program::Role::stash && program::writes(operand.access))
      left_by_[{operand.range.buffer, operand.range.offset}] = shape;
}

void ensure_calls(const program::Program& program, CallProof& proof) {
  const auto faults = proof.check(program);
  if (!faults.empty())
    throw InternalError(fmt::format(
        "kernels would not compute what the program says (a bug in the layout of a segment):\n  {}",
        join(faults, "\n  ")));
}

}  // namespace lockstep::proof
