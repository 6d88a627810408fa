#include <fmt/format.h>

#include "base/index.h"
#include "lockstep/error.h"
#include "parallel/program_writer.h"

// Instructions that run a segment of the model.

namespace lockstep::parallel {

void ProgramWriter::forward(int lane, int segment, int micro_batch, int leaf, int local_leaf, bool accumulate,
                            bool keeps) {
  const auto& face = code_.segment(segment);
  program::Instruction forward =
      instruction(program::InstructionKind::forward, lane, segment, micro_batch, leaf);
  forward.accumulate = accumulate && face.has_loss;
  const int piece = partition_.piece_of(segment);
  read_for_forward(forward, piece);
  for (const int storage : face.writes)
    forward.operands.push_back(activation_operand(program::Role::output, storage, program::Access::write,
                                                  activation(storage, micro_batch, piece)));
  write_stash(forward, keeps);
  if (face.has_loss) {
    const int64_t bytes = ops::kMetricCount * sizeof(double);
    forward.operands.push_back({program::Role::metrics,
                                0,
                                forward.accumulate ? program::Access::read_write : program::Access::write,
                                {metrics_, local_leaf * bytes, bytes}});
  }
  program.instructions.push_back(std::move(forward));
}

void ProgramWriter::recompute(int lane, int segment, int micro_batch, int leaf) {
  program::Instruction recompute =
      instruction(program::InstructionKind::recompute, lane, segment, micro_batch, leaf);
  read_for_forward(recompute, partition_.piece_of(segment));
  // Its outputs are there already.
  for (const int storage : code_.segment(segment).writes)
    recompute.operands.push_back(
        activation_operand(program::Role::output, storage, program::Access::write,
                           scratch(fmt::format("o{}", segment), code_.activation_bytes(storage))));
  write_stash(recompute, true);
  program.instructions.push_back(std::move(recompute));
}

void ProgramWriter::read_for_forward(program::Instruction& instruction, int piece) {
  for (const int storage : code_.segment(instruction.segment).reads)
    instruction.operands.push_back(activation_operand(program::Role::input, storage, program::Access::read,
                                                      activation(storage, instruction.micro_batch, piece)));
  read_parameters(instruction, instruction.segment);
  instruction.operands.push_back(
      {program::Role::constants, 0, program::Access::read, program.whole(constants_)});
}

/// And what is scratch.
void ProgramWriter::write_stash(program::Instruction& instruction, bool keeps) {
  const int segment = instruction.segment;
  const auto& face = code_.segment(segment);
  if (face.stash_bytes > 0)
    instruction.operands.push_back(
        {program::Role::stash, 0, program::Access::write,
         program.whole(keeps ? keyed_buffer(fmt::format("stash.{}.mb{}", segment, instruction.micro_batch),
                                            program::Category::activations, face.stash_bytes)
                             : scratch(fmt::format("s{}", segment), face.stash_bytes))});
  if (face.forward_temporary_bytes > 0)
    instruction.operands.push_back(
        {program::Role::temporary, 0, program::Access::write,
         program.whole(scratch(fmt::format("f{}", segment), face.forward_temporary_bytes))});
}

void ProgramWriter::backward(int lane, int segment, int micro_batch, int leaf, int slot, bool accumulate) {
  const auto& face = code_.segment(segment);
  const auto& bucket = partition_.bucket(segment);
  if (bucket.size_bytes == 0 && face.input_gradients.empty()) return;
  program::Instruction backward =
      instruction(program::InstructionKind::backward, lane, segment, micro_batch, leaf);
  backward.accumulate = accumulate;
  read_for_backward(backward, face.backward_reads, face.output_gradients);
  write_input_gradients(backward, partition_.piece_of(segment));
  write_gradients(backward, slot, {0, bucket.size_bytes});
  use_temporary(backward, face.backward_temporary_bytes);
  program.instructions.push_back(std::move(backward));
}

void ProgramWriter::backward_input(int lane, int segment, int micro_batch, int leaf, int slot,
                                   bool accumulate) {
  const auto& face = code_.segment(segment);
  const auto& bucket = partition_.bucket(segment);
  const layout::ByteSpan first{0, bucket.split_begin}, last{bucket.split_end, bucket.size_bytes};
  if (first.empty() && last.empty() && face.input_gradients.empty() && face.weight_stash_bytes == 0) return;
  ensure(first.empty() || last.empty(), "the first half's gradients lie side by side");
  program::Instruction half =
      instruction(program::InstructionKind::backward_input, lane, segment, micro_batch, leaf);
  half.accumulate = accumulate;
  read_for_backward(half, face.backward_reads, face.output_gradients);
  write_input_gradients(half, partition_.piece_of(segment));
  pass_to_second_half(half, program::Access::write);
  write_gradients(half, slot, first.empty() ? last : first);
  use_temporary(half, face.backward_input_temporary_bytes);
  program.instructions.push_back(std::move(half));
}

void ProgramWriter::backward_weight(int lane, int segment, int micro_batch, int leaf, int slot,
                                    bool accumulate) {
  const auto& face = code_.segment(segment);
  const auto& bucket = partition_.bucket(segment);
  if (bucket.split_begin == bucket.split_end) return;
  program::Instruction half =
      instruction(program::InstructionKind::backward_weight, lane, segment, micro_batch, leaf);
  half.accumulate = accumulate;
  read_for_backward(half, face.weight_reads, face.weight_output_gradients);
  pass_to_second_half(half, program::Access::read);
  write_gradients(half, slot, {bucket.split_begin, bucket.split_end});
  use_temporary(half, face.backward_weight_temporary_bytes);
  program.instructions.push_back(std::move(half));
}

void ProgramWriter::read_for_backward(program::Instruction& instruction, const std::vector<int>& activations,
                                      const std::vector<int>& gradients) {
  const int segment = instruction.segment, micro_batch = instruction.micro_batch;
  const int piece = partition_.piece_of(segment);
  const auto& face = code_.segment(segment);
  for (const int storage : activations)
    instruction.operands.push_back(activation_operand(program::Role::input, storage, program::Access::read,
                                                      activation(storage, micro_batch, piece)));
  read_parameters(instruction, segment);
  instruction.operands.push_back(
      {program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  if (face.stash_bytes > 0)
    instruction.operands.push_back(
        {program::Role::stash, 0, program::Access::read,
         program.whole(keyed_buffer(fmt::format("stash.{}.mb{}", segment, micro_batch),
                                    program::Category::activations, face.stash_bytes))});
  for (const int storage : gradients)
    instruction.operands.push_back(activation_operand(program::Role::output_gradient, storage,
                                                      program::Access::read,
                                                      activation_gradient(storage, micro_batch, piece)));
}

void ProgramWriter::write_input_gradients(program::Instruction& instruction, int piece) {
  for (const int storage : code_.segment(instruction.segment).input_gradients)
    instruction.operands.push_back(
        activation_operand(program::Role::input_gradient, storage, program::Access::write,
                           activation_gradient(storage, instruction.micro_batch, piece)));
}

void ProgramWriter::write_gradients(program::Instruction& instruction, int slot,
                                    const layout::ByteSpan& bytes) {
  if (bytes.empty()) return;
  instruction.operands.push_back(
      {.role = program::Role::gradients,
       .index = instruction.segment,
       .access = instruction.accumulate ? program::Access::read_write : program::Access::write,
       .range = {gradient_buffer(instruction.segment, slot), bytes.begin, bytes.size()},
       .position = bytes.begin});
}

/// Gradients inside of the segment, which the second half of backward reads.
void ProgramWriter::pass_to_second_half(program::Instruction& instruction, program::Access access) {
  const int64_t bytes = code_.segment(instruction.segment).weight_stash_bytes;
  if (bytes > 0)
    instruction.operands.push_back(
        {program::Role::stash, 1, access,
         program.whole(
             keyed_buffer(fmt::format("inner.{}.mb{}", instruction.segment, instruction.micro_batch),
                          program::Category::activations, bytes))});
}

void ProgramWriter::use_temporary(program::Instruction& instruction, int64_t size_bytes) {
  if (size_bytes > 0)
    instruction.operands.push_back(
        {program::Role::temporary, 0, program::Access::write,
         program.whole(scratch(fmt::format("b{}", instruction.segment), size_bytes))});
}

}  // namespace lockstep::parallel
