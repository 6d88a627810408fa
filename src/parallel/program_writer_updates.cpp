// Instructions that complete a step: gradients of tied parameters, agreement, updates; and copies of
// parameters in a narrower type, which updates write.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/index.h"
#include "parallel/program_writer.h"
#include "program/step_scalars.h"

namespace lockstep::parallel {

bool ProgramWriter::updates_all(int segment) const {
  const model::Bucket& bucket = partition_.bucket(segment);
  return bucket.held_bytes == bucket.owned_bytes &&
         ownership_.updated_by(segment, rank_) == layout::ByteSpan{0, bucket.owned_bytes};
}

void ProgramWriter::cast_parameters(int lane, Changes changes) {
  for (size_t s = 0; s < narrow_parameters_.size(); ++s) {
    if (narrow_parameters_[s] < 0) continue;
    program::Instruction cast = instruction(program::InstructionKind::cast, lane, static_cast<int>(s));
    cast.anew = changes == Changes::none || (changes == Changes::updates && updates_all(static_cast<int>(s)));
    cast.operands.push_back({program::Role::source, 0, program::Access::read, program.whole(parameters_[s])});
    cast.operands.push_back({.role = program::Role::destination,
                             .access = program::Access::write,
                             .range = program.whole(narrow_parameters_[s]),
                             .dtype = graph_.compute});
    program.instructions.push_back(std::move(cast));
  }
}

layout::ByteSpan ProgramWriter::complete_gradients(int segment, GradientsOf of) const {
  return of == GradientsOf::all ? layout::ByteSpan{0, partition_.bucket(segment).owned_bytes}
                                : ownership_.updated_by(segment, rank_);
}

void ProgramWriter::add_ties_first(int lane, int segment) {
  add_ties(lane, segment, complete_gradients(segment, GradientsOf::all), true, {});
}

void ProgramWriter::add_tied_uses(int lane, int segment, const layout::Slice& slice,
                                  const std::function<program::ByteRange(int, int)>& elsewhere) {
  add_ties(lane, segment, layout::slice_of(complete_gradients(segment, GradientsOf::updated), slice), false,
           elsewhere);
}

void ProgramWriter::add_ties(int lane, int segment, const layout::ByteSpan& complete, bool first,
                             const std::function<program::ByteRange(int, int)>& elsewhere) {
  for (size_t p = 0; p < program.parameters.size(); ++p) {
    const auto& place = program.parameters[p];
    for (size_t use = 1; use < place.uses.size() && place.uses[0].segment == segment; ++use) {
      const auto& owner = place.uses[0];
      const auto& other = place.uses[use];
      if (place.is_frozen() || ownership_.is_tied_first(other.segment) != first) continue;
      const layout::ByteSpan part =
          intersection(complete, {owner.bucket_offset, owner.bucket_offset + place.size_bytes});
      if (part.empty()) continue;
      const auto part_of = [&](const auto& place_of_use) {
        const int64_t from = place_of_use.bucket_offset + part.begin - owner.bucket_offset;
        return gradient_range(place_of_use.segment, 0, {from, from + part.size()});
      };
      const bool is_here = !elsewhere || ownership_.computes(other.segment, rank_);
      add_ranges(lane, part_of(owner),
                 is_here ? part_of(other) : elsewhere(static_cast<int>(p), static_cast<int>(use)));
    }
  }
}

void ProgramWriter::agree(int lane, int group, int ranks, int most_records) {
  program::Instruction agree = instruction(program::InstructionKind::agree, lane, -1);
  agree.group = group;
  agree.deadline = program::DeadlineClass::communication;
  const int gather = program.add_buffer("agree.records", program::Space::scalars, program::Category::staging,
                                        ranks * program::agree_record_bytes(most_records));
  if (metrics_ >= 0)
    agree.operands.push_back({program::Role::metrics, 0, program::Access::read, program.whole(metrics_)});
  agree.operands.push_back({program::Role::data, 0, program::Access::write, program.whole(gather)});
  agree.operands.push_back(
      {program::Role::verdict, 0, program::Access::write, {verdict_, 0, program::kAgreedBytes}});
  program.instructions.push_back(std::move(agree));
}

void ProgramWriter::digest(int lane) {
  program::Instruction digest = instruction(program::InstructionKind::digest, lane, -1);
  for (size_t s = 0; s < parameters_.size(); ++s)
    if (parameters_[s] >= 0)
      digest.operands.push_back({program::Role::parameters, static_cast<int>(s), program::Access::read,
                                 program.whole(parameters_[s])});
  const int digests = add_chunks("digests", 1);
  digest.operands.push_back({program::Role::chunks, 0, program::Access::write, program.whole(digests)});
  program.instructions.push_back(std::move(digest));
}

void ProgramWriter::read_verdict(program::Instruction& instruction, UpdateVerdict verdict) const {
  instruction.operands.push_back(
      {program::Role::verdict, 0, program::Access::read, {verdict_, 0, program::kAgreedBytes}});
  if (verdict != UpdateVerdict::none)
    instruction.operands.push_back({program::Role::verdict,
                                    1,
                                    program::Access::read,
                                    {verdict_, program::kAgreedBytes, program::kAgreedBytes}});
  if (verdict == UpdateVerdict::scale_and_predicate)
    instruction.operands.push_back(
        {program::Role::predicate,
         0,
         program::Access::read,
         {verdict_, static_cast<int64_t>(offsetof(program::Verdict, finite)), sizeof(double)}});
}

int64_t ProgramWriter::update_scratch_bytes(int segment) const {
  int64_t most = 0;
  for (const program::ParameterPlace& place : program.parameters)
    if (place.uses[0].segment == segment && !place.owned.empty()) most = std::max(most, place.whole_scratch);
  return most;
}

void ProgramWriter::update(int lane, int segment, UpdateVerdict verdict, const layout::Slice& slice) {
  const layout::ByteSpan all = ownership_.updated_by(segment, rank_);
  const layout::ByteSpan updated = layout::slice_of(all, slice);
  if (updated.empty()) return;
  program::Instruction update = instruction(program::InstructionKind::update, lane, segment);
  update.operands.push_back({.role = program::Role::gradients,
                             .index = segment,
                             .access = program::Access::read,
                             .range = gradient_range(segment, 0, updated)});
  update.operands.push_back(
      {program::Role::parameters, segment, program::Access::read_write, parameter_range(segment, updated)});
  for (int slot = 0; slot < state_slots_ && state_buffer(segment) >= 0; ++slot)
    update.operands.push_back(
        {program::Role::state,
         slot,
         slot < kept_slots_ ? program::Access::read : program::Access::read_write,
         {state_buffer(segment), slot * all.size() + updated.begin - all.begin, updated.size()}});
  update.operands.push_back({program::Role::constants, 0, program::Access::read, program.whole(constants_)});
  read_verdict(update, verdict);
  if (scales_ >= 0)
    update.operands.push_back({.role = program::Role::scales,
                               .access = program::Access::read,
                               .range = program.whole(scales_),
                               .dtype = DType::float64});
  if (const int copy = nth(narrow_parameters_, segment); copy >= 0 && updates_all(segment)) {
    const int64_t width = size_of(graph_.compute);
    update.operands.push_back({.role = program::Role::destination,
                               .access = program::Access::write,
                               .range = {copy, updated.begin / 4 * width, updated.size() / 4 * width},
                               .dtype = graph_.compute});
  }
  if (const int64_t bytes = update_scratch_bytes(segment); bytes > 0)
    update.operands.push_back({program::Role::temporary, 0, program::Access::write,
                               program.whole(scratch(fmt::format("m{}", segment), bytes))});
  program.instructions.push_back(std::move(update));
}

}  // namespace lockstep::parallel
