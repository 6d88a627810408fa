// Sums of squares of gradients, parameters and updates, and what updates take from them.

#include <utility>

#include "base/index.h"
#include "parallel/program_writer.h"
#include "program/step_scalars.h"

namespace lockstep::parallel {

using layout::Measured;

int64_t ProgramWriter::chunks_bytes() const {
  return layout::norm_chunks_of(graph_).count * static_cast<int64_t>(sizeof(double));
}

int ProgramWriter::add_chunks(const char* name, int lists) {
  return program.add_buffer(name, program::Space::scalars, program::Category::staging,
                            lists * chunks_bytes());
}

program::Operand ProgramWriter::chunks_operand(Measured measured, program::Access access,
                                               const program::ByteRange& range) const {
  return {program::Role::chunks, static_cast<int>(measured), access, range, -1, DType::float64};
}

program::ByteRange ProgramWriter::parameter_range(int segment, const layout::ByteSpan& bytes) const {
  return {parameter_buffer(segment), bytes.begin - ownership_.held(segment, rank_).begin, bytes.size()};
}

void ProgramWriter::norm(int lane, const WriteSum& write_sum, GradientsOf of, bool with_parameters) {
  program::Instruction norm = instruction(program::InstructionKind::norm, lane, -1);
  const int segments = static_cast<int>(partition_.buckets.size());
  for (int s = 0; s < segments; ++s)
    if (const layout::ByteSpan complete = complete_gradients(s, of); !complete.empty())
      norm.operands.push_back({.role = program::Role::gradients,
                               .index = s,
                               .access = program::Access::read,
                               .range = gradient_range(s, 0, complete),
                               .position = complete.begin});
  for (int s = 0; s < segments && with_parameters; ++s)
    if (const layout::ByteSpan updated = ownership_.updated_by(s, rank_); !updated.empty())
      norm.operands.push_back({.role = program::Role::parameters,
                               .index = s,
                               .access = program::Access::read,
                               .range = parameter_range(s, updated),
                               .position = updated.begin});
  // One after the other, so that one sum over ranks is of both.
  const int sums = add_chunks("norm.chunks", with_parameters ? 2 : 1);
  const program::ByteRange of_gradients{sums, 0, chunks_bytes()},
      of_parameters{sums, chunks_bytes(), chunks_bytes()};
  norm.operands.push_back(chunks_operand(Measured::gradients, program::Access::write, of_gradients));
  measured_.push_back(chunks_operand(Measured::gradients, program::Access::read, of_gradients));
  if (with_parameters) {
    norm.operands.push_back(chunks_operand(Measured::parameters, program::Access::write, of_parameters));
    measured_.push_back(chunks_operand(Measured::parameters, program::Access::read, of_parameters));
  }
  if (write_sum) {
    program.instructions.push_back(std::move(norm));
    write_sum(program.whole(sums));
    norm = instruction(program::InstructionKind::norm, lane, -1);
    norm.operands.push_back(chunks_operand(Measured::gradients, program::Access::read, of_gradients));
  }
  norm.operands.push_back(
      {program::Role::verdict, 0, program::Access::read, {verdict_, 0, program::kAgreedBytes}});
  norm.operands.push_back({program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  norm.operands.push_back({program::Role::verdict,
                           1,
                           program::Access::write,
                           {verdict_, program::kAgreedBytes, program::kAgreedBytes}});
  program.instructions.push_back(std::move(norm));
}

void ProgramWriter::propose(int lane, int slots, UpdateVerdict verdict, const WriteSum& write_sum) {
  program::Instruction propose = instruction(program::InstructionKind::propose, lane, -1);
  for (int s = 0; s < static_cast<int>(partition_.buckets.size()); ++s) {
    const layout::ByteSpan updated = ownership_.updated_by(s, rank_);
    if (updated.empty()) continue;
    propose.operands.push_back({.role = program::Role::gradients,
                                .index = s,
                                .access = program::Access::read,
                                .range = gradient_range(s, 0, updated),
                                .position = updated.begin});
    propose.operands.push_back({.role = program::Role::parameters,
                                .index = s,
                                .access = program::Access::read,
                                .range = parameter_range(s, updated),
                                .position = updated.begin});
    // One slot after the other, as the buffer has them.
    propose.operands.push_back(
        {program::Role::state, s, program::Access::read_write, {state_buffer(s), 0, slots * updated.size()}});
  }
  propose.operands.push_back({program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  read_verdict(propose, verdict);
  const int sums = add_chunks("propose.chunks", 1);
  propose.operands.push_back(chunks_operand(Measured::updates, program::Access::write, program.whole(sums)));
  measured_.push_back(chunks_operand(Measured::updates, program::Access::read, program.whole(sums)));
  kept_slots_ = slots;
  program.instructions.push_back(std::move(propose));
  if (write_sum) write_sum(program.whole(sums));
}

void ProgramWriter::ratios(int lane, UpdateVerdict verdict) {
  program::Instruction ratios = instruction(program::InstructionKind::ratios, lane, -1);
  ratios.operands = measured_;
  scales_ = program.add_buffer("scales", program::Space::scalars, program::Category::staging,
                               static_cast<int64_t>(sizeof(double) * program.parameters.size()));
  // Whatever updates do if the step is not finite, a scale writes over nothing but the last one.
  read_verdict(ratios, verdict == UpdateVerdict::none ? verdict : UpdateVerdict::scale);
  ratios.operands.push_back({program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  ratios.operands.push_back({.role = program::Role::scales,
                             .access = program::Access::write,
                             .range = program.whole(scales_),
                             .dtype = DType::float64});
  program.instructions.push_back(std::move(ratios));
}

}  // namespace lockstep::parallel
