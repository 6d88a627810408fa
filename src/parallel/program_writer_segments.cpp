#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/ensure.h"
#include "base/index.h"
#include "parallel/program_writer.h"

// Instructions that run a segment of the model.

namespace lockstep::parallel {

void ProgramWriter::forward(int lane, int segment, int micro_batch, bool accumulate, bool keeps) {
  const auto& face = code_of(micro_batch).segment(segment);
  program::Instruction forward =
      instruction_of(program::InstructionKind::forward, lane, segment, micro_batch);
  forward.accumulate = accumulate && face.has_loss;
  const int piece = partition_.piece_of(segment);
  read_for_forward(forward, piece);
  for (const int storage : face.writes)
    forward.operands.push_back(activation_operand(program::Role::output, storage, program::Access::write,
                                                  activation(storage, micro_batch, piece), micro_batch));
  // With selective recomputation only what is cheap to repeat is not kept.
  const bool repeats = code_.options().repeats;
  keeps || repeats ? add_stash(forward, Stash::kept, program::Access::write)
                   : add_scratch_stash(forward, Stash::kept);
  keeps ? add_stash(forward, Stash::repeated, program::Access::write)
        : add_scratch_stash(forward, Stash::repeated);
  add_temporary(forward, "f");
  if (face.has_loss) {
    const int64_t bytes = code_of(micro_batch).metric_bytes();
    const int64_t offset = (forward.leaf - micro_batches_.front().begin) * program::kMetricBytes;
    forward.operands.push_back({program::Role::metrics,
                                0,
                                forward.accumulate ? program::Access::read_write : program::Access::write,
                                {metrics_, offset, bytes}});
  }
  program.instructions.push_back(std::move(forward));
}

void ProgramWriter::recompute(int lane, int segment, int micro_batch) {
  const auto& code = code_of(micro_batch);
  const auto& face = code.segment(segment);
  if (!face.has_backward) return;
  const bool repeats = code_.options().repeats;
  if (repeats && face.repeated_stash_bytes == 0) return;
  program::Instruction recompute =
      instruction_of(program::InstructionKind::recompute, lane, segment, micro_batch);
  const int piece = partition_.piece_of(segment);
  if (repeats) {
    for (const int storage : face.recompute_reads)
      recompute.operands.push_back(activation_operand(program::Role::input, storage, program::Access::read,
                                                      activation(storage, micro_batch, piece), micro_batch));
    recompute.operands.push_back(
        {program::Role::constants, 0, program::Access::read, program.whole(constants_)});
    add_stash(recompute, Stash::kept, program::Access::read);
    // Without a stash to read it counts as one of the whole segment, which names its parameters.
    if (face.stash_bytes == 0) read_parameters(recompute, segment);
  } else {
    read_for_forward(recompute, piece);
    add_stash(recompute, Stash::kept, program::Access::write);
  }
  // Outputs are there already.
  for (const int storage : face.recompute_writes)
    recompute.operands.push_back(activation_operand(
        program::Role::output, storage, program::Access::write,
        scratch(fmt::format("o{}", segment), code.activation_bytes(storage)), micro_batch));
  add_stash(recompute, Stash::repeated, program::Access::write);
  add_temporary(recompute, "f");
  program.instructions.push_back(std::move(recompute));
}

void ProgramWriter::read_for_forward(program::Instruction& instruction, int piece) {
  const int m = instruction.micro_batch;
  for (const int storage : code_.segment(instruction.segment).reads)
    instruction.operands.push_back(activation_operand(program::Role::input, storage, program::Access::read,
                                                      activation(storage, m, piece), m));
  read_parameters(instruction, instruction.segment);
  instruction.operands.push_back(
      {program::Role::constants, 0, program::Access::read, program.whole(constants_)});
}

int64_t ProgramWriter::stash_bytes(const program::SegmentInterface& face, Stash stash) {
  switch (stash) {
    case Stash::kept:
      return face.stash_bytes;
    case Stash::weight:
      return face.weight_stash_bytes;
    case Stash::repeated:
      return face.repeated_stash_bytes;
  }
  return 0;
}

void ProgramWriter::add_stash(program::Instruction& instruction, Stash stash, program::Access access) {
  static constexpr const char* kNames[] = {"stash", "inner", "repeated"};
  const int64_t size_bytes =
      stash_bytes(code_of(instruction.micro_batch).segment(instruction.segment), stash);
  if (size_bytes > 0)
    instruction.operands.push_back(
        {program::Role::stash, static_cast<int>(stash), access,
         program.whole(keyed_buffer(
             fmt::format("{}.{}.mb{}", nth(kNames, stash), instruction.segment, instruction.micro_batch),
             program::Category::activations, size_bytes))});
}

void ProgramWriter::add_scratch_stash(program::Instruction& instruction, Stash stash) {
  const auto& face = code_of(instruction.micro_batch).segment(instruction.segment);
  if (const int64_t size_bytes = stash_bytes(face, stash); size_bytes > 0)
    instruction.operands.push_back(
        {program::Role::stash, static_cast<int>(stash), program::Access::write,
         program.whole(scratch(fmt::format("s{}", instruction.segment), size_bytes))});
}

void ProgramWriter::add_temporary(program::Instruction& instruction, const char* name) {
  const auto& face = code_of(instruction.micro_batch).segment(instruction.segment);
  const int64_t size_bytes = face.temporary_bytes_of(instruction.kind);
  if (size_bytes > 0)
    instruction.operands.push_back(
        {program::Role::temporary, 0, program::Access::write,
         program.whole(scratch(fmt::format("{}{}", name, instruction.segment), size_bytes))});
}

std::vector<layout::ByteSpan> gradients_of(program::InstructionKind backward, const model::Bucket& bucket) {
  std::vector<layout::ByteSpan> spans;
  switch (backward) {
    case program::InstructionKind::backward_input:
      spans = {{0, bucket.split_begin}, {bucket.split_end, bucket.size_bytes}};
      break;
    case program::InstructionKind::backward_weight:
      spans = {{bucket.split_begin, bucket.split_end}};
      break;
    default:
      spans = {{0, bucket.size_bytes}};
  }
  std::erase_if(spans, [](const layout::ByteSpan& span) { return span.empty(); });
  return spans;
}

void ProgramWriter::backward(program::InstructionKind kind, int lane, int segment, int micro_batch, int slot,
                             bool accumulate) {
  const auto& face = code_of(micro_batch).segment(segment);
  const std::vector<layout::ByteSpan> gradients = gradients_of(kind, partition_.bucket(segment));
  const bool is_first_half = kind == program::InstructionKind::backward_input;
  const bool leaves_work = is_first_half && face.weight_stash_bytes > 0;
  if (gradients.empty() && face.input_gradients_of(kind).empty() && !leaves_work) return;
  ensure(gradients.size() <= 1, "gradients that are computed together lie side by side");
  program::Instruction backward = instruction_of(kind, lane, segment, micro_batch);
  backward.accumulate = accumulate;
  const int piece = partition_.piece_of(segment);
  const auto add = [&](program::Role role, program::Access access, int storage, int buffer) {
    backward.operands.push_back(activation_operand(role, storage, access, buffer, micro_batch));
  };
  for (const int storage : face.inputs_of(kind))
    add(program::Role::input, program::Access::read, storage, activation(storage, micro_batch, piece));
  read_parameters(backward, segment);
  backward.operands.push_back(
      {program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  add_stash(backward, Stash::kept, program::Access::read);
  add_stash(backward, Stash::repeated, program::Access::read);
  for (const int storage : face.output_gradients_of(kind))
    add(program::Role::output_gradient, program::Access::read, storage,
        activation_gradient(storage, micro_batch, piece));
  for (const int storage : face.input_gradients_of(kind))
    add(program::Role::input_gradient, program::Access::write, storage,
        activation_gradient(storage, micro_batch, piece));
  // Gradients inside of the segment, which the second half reads.
  if (kind != program::InstructionKind::backward)
    add_stash(backward, Stash::weight, is_first_half ? program::Access::write : program::Access::read);
  for (const layout::ByteSpan& bytes : gradients)
    backward.operands.push_back({.role = program::Role::gradients,
                                 .index = segment,
                                 .access = accumulate ? program::Access::read_write : program::Access::write,
                                 .range = {gradient_buffer(segment, slot), bytes.begin, bytes.size()},
                                 .position = bytes.begin});
  add_temporary(backward, "b");
  program.instructions.push_back(std::move(backward));
}

}  // namespace lockstep::parallel
