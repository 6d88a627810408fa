#include "parallel/program_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "program/step_scalars.h"

namespace lockstep::parallel {

ProgramWriter::ProgramWriter(std::string name, const model::Graph& graph, const model::Partition& partition,
                             const program::ModelCode& code, const layout::Ownership& ownership,
                             int state_slots, int rank, const std::vector<layout::SavedPart>& share,
                             const ServerRoom& room, const std::vector<int64_t>& whole_scratch)
    : graph_(graph),
      partition_(partition),
      code_(code),
      ownership_(ownership),
      state_slots_(state_slots),
      rank_(rank),
      share_(share),
      whole_scratch_(whole_scratch) {
  program.name = std::move(name);
  const int segments = static_cast<int>(partition.segments.size());
  for (int s = 0; s < segments; ++s) {
    const int64_t bytes = ownership.held(s, rank).size();
    parameters_.push_back(bytes == 0
                              ? -1
                              : program.add_buffer(fmt::format("param.{}", s), program::Space::parameters,
                                                   program::Category::parameters, bytes));
  }
  for (int s = 0; s < segments; ++s) {
    const int64_t bytes = ownership.updated_by(s, rank).size() * state_slots;
    states_.push_back(bytes == 0 ? -1
                                 : program.add_buffer(fmt::format("state.{}", s), program::Space::optimizer,
                                                      program::Category::optimizer_state, bytes));
  }
  // Rounded copies of whole parameter buffers, elements at the same index, for segments that have any such
  // parameter. Servers read none.
  narrow_parameters_.assign(static_cast<size_t>(segments), -1);
  for (int reader = 0; reader < segments; ++reader)
    for (const int s : code.segment(reader).narrow_parameter_segments)
      if (int& buffer = nth(narrow_parameters_, s); buffer < 0 && ownership.computes(reader, rank))
        buffer = program.add_buffer(fmt::format("param.{}.{}", s, name_of(graph.compute)),
                                    program::Space::parameters, program::Category::parameters,
                                    ownership.held(s, rank).size() / 4 * size_of(graph.compute));
  add_server_room(room);
  // While it is written to the disk, training goes on: no program of the rank may use its place for anything
  // else.
  if (const int64_t bytes = layout::size_bytes_of(share); bytes > 0)
    snapshot_ = program.add_buffer("snapshot", program::Space::host, program::Category::staging, bytes);
  constants_ = program.add_buffer("constants", program::Space::scalars, program::Category::staging,
                                  program::kStepScalarsBytes);
  verdict_ = program.add_buffer("verdict", program::Space::scalars, program::Category::staging,
                                sizeof(program::Verdict));

  program.parameters.resize(graph.parameters.size());
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    program.parameters[p].name = graph.parameters[p].name;
    program.parameters[p].uses.resize(graph.parameters[p].uses.size());
  }
  for (int s = 0; s < segments; ++s) {
    for (const auto& entry : partition.bucket(s).entries) {
      nth(program.parameter(entry.parameter).uses, entry.use) = {s, entry.offset_bytes};
      if (entry.use == 0) place_parameter(s, entry);
    }
    for (const auto& entry : partition.bucket(s).frozen) {
      nth(program.parameter(entry.parameter).uses, entry.use) = {s, program::kNoGradient};
      if (entry.use == 0) place_parameter(s, entry);
    }
  }
}

/// Says where the parameter, the first of whose uses this is, and its optimizer state lie.
void ProgramWriter::place_parameter(int segment, const model::BucketEntry& first) {
  auto& place = program.parameter(first.parameter);
  place.size_bytes = first.count * 4;
  if (!whole_scratch_.empty()) place.whole_scratch = nth(whole_scratch_, first.parameter);
  place.held = ownership_.held_part(first.parameter, rank_);
  place.owned = ownership_.owned(first.parameter, rank_);
  for (const tensor::Part* part : {&place.held, &place.owned})
    tensor::require_whole_chunks(*part, place.elements(), place.name);
  // One slot after the other, each as large as what the worker updates of the segment.
  const layout::ByteSpan updated = ownership_.updated_by(segment, rank_);
  for (int slot = 0; slot < state_slots_ && !place.owned.empty(); ++slot)
    place.states.push_back({nth(states_, segment), slot * updated.size() + first.offset_bytes +
                                                       layout::bytes_of(place.owned).begin - updated.begin});
  if (place.held.empty()) return;
  place.buffer = nth(parameters_, segment);
  place.offset =
      first.offset_bytes + layout::bytes_of(place.held).begin - ownership_.held(segment, rank_).begin;
  place.narrow_buffer = nth(narrow_parameters_, segment);
  if (place.narrow_buffer >= 0) place.narrow_offset = place.offset / 4 * size_of(graph_.compute);
}

int64_t ProgramWriter::gradient_bytes(size_t segment) const {
  int64_t bytes = 0;
  for (const layout::ByteSpan& part : ownership_.held_gradients(static_cast<int>(segment), rank_))
    bytes += part.size();
  return bytes;
}

void ProgramWriter::add_gradient_slots(int slots) {
  for (int slot = 0; slot < slots; ++slot) {
    std::vector<int> buffers;
    for (size_t s = 0; s < partition_.buckets.size(); ++s) {
      const int64_t bytes = gradient_bytes(s);
      buffers.push_back(bytes == 0 ? -1
                                   : program.add_buffer(fmt::format("grad.{}.slot{}", s, slot),
                                                        program::Space::gradients,
                                                        program::Category::gradients, bytes));
    }
    gradients_.push_back(std::move(buffers));
  }
}

void ProgramWriter::add_wire_slots(int slots, DType dtype) {
  for (int slot = 0; slot < slots; ++slot) {
    std::vector<int> buffers;
    for (size_t s = 0; s < partition_.buckets.size(); ++s) {
      const int64_t bytes = gradient_bytes(s) / 4 * size_of(dtype);
      buffers.push_back(bytes == 0
                            ? -1
                            : program.add_buffer(fmt::format("wire.{}.slot{}", s, slot),
                                                 program::Space::arena, program::Category::gradients, bytes));
    }
    wire_.push_back(std::move(buffers));
  }
}

program::ByteRange ProgramWriter::gradient_range(int segment, int slot, const layout::ByteSpan& bytes) const {
  int64_t at = 0;
  for (const layout::ByteSpan& part : ownership_.held_gradients(segment, rank_)) {
    if (part.begin <= bytes.begin && bytes.end <= part.end)
      return {gradient_buffer(segment, slot), at + bytes.begin - part.begin, bytes.size()};
    at += part.size();
  }
  throw InternalError(fmt::format("rank {} holds no gradients {} to {} of segment {}", rank_, bytes.begin,
                                  bytes.end, segment));
}

void ProgramWriter::add_metrics(int records) {
  metrics_ = program.add_buffer("metrics", program::Space::scalars, program::Category::staging,
                                std::max(records, 1) * program::kMetricBytes);
}

program::Instruction ProgramWriter::instruction(program::InstructionKind kind, int lane, int segment) const {
  program::Instruction result;
  result.kind = kind;
  result.lane = lane;
  result.segment = segment;
  return result;
}

program::Instruction ProgramWriter::instruction_of(program::InstructionKind kind, int lane, int segment,
                                                   int micro_batch) const {
  program::Instruction result = instruction(kind, lane, segment);
  const layout::TreeNode& leaves = nth(micro_batches_, micro_batch);
  result.micro_batch = micro_batch;
  result.leaf = leaves.begin;
  result.leaves = leaves.size();
  return result;
}

int ProgramWriter::keyed_buffer(const std::string& name, program::Category category, int64_t bytes) {
  const auto found = keyed_.find(name);
  if (found != keyed_.end()) return found->second;
  return keyed_[name] = program.add_buffer(name, program::Space::arena, category, bytes);
}

/// A rank with several pieces of the model may have a value in several of them: as it made it, and as it came
/// around.
std::string ProgramWriter::place_text(int storage, bool gradient, int micro_batch, int piece) const {
  if (const auto turns = turns_.find({storage, gradient, piece}); turns != turns_.end())
    return fmt::format("turn{}.piece{}", micro_batch % turns->second, piece);
  return partition_.piece_count() > ownership_.stages() ? fmt::format("mb{}.piece{}", micro_batch, piece)
                                                        : fmt::format("mb{}", micro_batch);
}

int64_t ProgramWriter::place_bytes(int storage, bool gradient, int micro_batch, int piece) const {
  const bool is_shared = turns_.contains({storage, gradient, piece});
  return (is_shared ? code_ : code_of(micro_batch)).activation_bytes(storage);
}

int ProgramWriter::activation(int storage, int micro_batch, int piece) {
  const auto& value = graph_.value(storage);
  if (value.producer < 0) {
    const std::string name = fmt::format("batch.{}.{}", value.name, micro_batch % batch_buffers_);
    if (const auto found = keyed_.find(name); found != keyed_.end()) return found->second;
    return keyed_[name] = program.add_buffer(name, program::Space::staging, program::Category::staging,
                                             code_.activation_bytes(storage));
  }
  return keyed_buffer(fmt::format("act.{}.{}", value.name, place_text(storage, false, micro_batch, piece)),
                      program::Category::activations, place_bytes(storage, false, micro_batch, piece));
}

int ProgramWriter::activation_gradient(int storage, int micro_batch, int piece) {
  const std::string place = place_text(storage, true, micro_batch, piece);
  return keyed_buffer(fmt::format("dact.{}.{}", graph_.value(storage).name, place),
                      program::Category::activations, place_bytes(storage, true, micro_batch, piece));
}

void ProgramWriter::take_turns(const std::vector<int>& storages, bool gradients, int piece, int buffers) {
  for (const int storage : storages) turns_[{storage, gradients, piece}] = buffers;
}

int ProgramWriter::scratch(std::string_view what, int64_t bytes) {
  return program.add_buffer(fmt::format("tmp.{}.{}", what, scratch_count_++), program::Space::arena,
                            program::Category::workspace, bytes);
}

void ProgramWriter::read_parameters(program::Instruction& instruction, int segment) const {
  for (const int owner : code_.segment(segment).parameter_segments)
    instruction.operands.push_back(
        {program::Role::parameters, owner, program::Access::read, program.whole(nth(parameters_, owner))});
  for (const int owner : code_.segment(segment).narrow_parameter_segments)
    instruction.operands.push_back({.role = program::Role::parameters,
                                    .index = owner,
                                    .access = program::Access::read,
                                    .range = program.whole(nth(narrow_parameters_, owner)),
                                    .dtype = graph_.compute});
}

program::Operand ProgramWriter::activation_operand(program::Role role, int storage, program::Access access,
                                                   int buffer, int micro_batch) const {
  return {.role = role,
          .index = storage,
          .access = access,
          .range = {buffer, 0, code_of(micro_batch).activation_bytes(storage)},
          .dtype = graph_.value(storage).spec.dtype};
}

void ProgramWriter::constants(int lane) {
  program::Instruction constants = instruction(program::InstructionKind::constants, lane);
  constants.operands.push_back(
      {program::Role::constants, 0, program::Access::write, program.whole(constants_)});
  program.instructions.push_back(std::move(constants));
}

bool ProgramWriter::loads(const std::vector<int>& segments) const {
  return std::ranges::any_of(segments, [this](int segment) {
    return std::ranges::any_of(code_.segment(segment).reads,
                               [this](int storage) { return graph_.value(storage).producer < 0; });
  });
}

bool ProgramWriter::wants(int input) const {
  for (int s = 0; s < static_cast<int>(partition_.segments.size()); ++s)
    if (ownership_.computes(s, rank_) &&
        std::ranges::find(code_.segment(s).reads, input) != code_.segment(s).reads.end())
      return true;
  return false;
}

void ProgramWriter::load(int lane, int micro_batch) {
  program::Instruction load = instruction_of(program::InstructionKind::load, lane, -1, micro_batch);
  load.deadline = program::DeadlineClass::input;
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    // A fork of an input is still the input's memory.
    const int storage = graph_.inputs[i];
    if (!wants(storage)) continue;
    program::Operand batch = activation_operand(program::Role::batch, storage, program::Access::write,
                                                activation(storage, micro_batch, 0), micro_batch);
    batch.index = static_cast<int>(i);
    load.operands.push_back(batch);
  }
  // Packed samples land in the device's memory, where they become the input.
  const auto& options = code_of(micro_batch).options();
  if (options.packed && wants(nth(graph_.inputs, options.packed->input)))
    load.operands.push_back(
        {program::Role::temporary, 0, program::Access::write,
         program.whole(scratch("packed", options.micro_batch * options.packed->layout.sample_bytes()))});
  program.instructions.push_back(std::move(load));
}

void ProgramWriter::pass(program::Role direction, int lane, int group, int peer,
                         const std::vector<int>& storages, bool gradients, int piece, int micro_batch) {
  const bool sends = direction == program::Role::send;
  std::vector<program::Operand> transfers;
  for (const int storage : storages) {
    const int buffer = gradients ? activation_gradient(storage, micro_batch, piece)
                                 : activation(storage, micro_batch, piece);
    program::Operand transfer = activation_operand(
        direction, storage, sends ? program::Access::read : program::Access::write, buffer, micro_batch);
    transfer.peer = peer;
    transfers.push_back(transfer);
  }
  if (transfers.empty()) return;
  exchange(lane, group, std::move(transfers));
  program.instructions.back().micro_batch = micro_batch;  // which reports name
}

void ProgramWriter::exchange(int lane, int group, std::vector<program::Operand> transfers) {
  if (transfers.empty()) return;
  program::Instruction exchange = instruction(program::InstructionKind::exchange, lane);
  exchange.group = group;
  exchange.deadline = program::DeadlineClass::communication;
  exchange.operands = std::move(transfers);
  program.instructions.push_back(std::move(exchange));
}

void ProgramWriter::add_ranges(int lane, program::ByteRange destination, program::ByteRange source,
                               DType dtype) {
  program::Instruction add = instruction(program::InstructionKind::add, lane);
  add.operands.push_back({.role = program::Role::destination,
                          .access = program::Access::read_write,
                          .range = destination,
                          .dtype = dtype});
  add.operands.push_back(
      {.role = program::Role::source, .access = program::Access::read, .range = source, .dtype = dtype});
  program.instructions.push_back(std::move(add));
}

void ProgramWriter::add_residuals(const layout::TreeNode& leaves) {
  for (int s = 0; s < static_cast<int>(partition_.segments.size()); ++s) {
    const int64_t bytes = ownership_.computes(s, rank_) ? ownership_.summed_bytes(s) * leaves.size() : 0;
    if (bytes == 0) continue;
    const int buffer = program.add_buffer(fmt::format("residual.{}", s), program::Space::optimizer,
                                          program::Category::optimizer_state, bytes);
    program.residuals.push_back(
        {.segment = s, .buffer = buffer, .first_leaf = leaves.begin, .leaves = leaves.size()});
  }
}

void ProgramWriter::narrow_gradients(int lane, int segment, int wire_slot, int leaf,
                                     const layout::ByteSpan& bytes) {
  const int64_t width = size_of(program.wire);
  program::Instruction cast = instruction(program::InstructionKind::cast, lane, segment);
  cast.operands.push_back(
      {.role = program::Role::destination,
       .access = program::Access::write,
       .range = {wire_buffer(segment, wire_slot), bytes.begin / 4 * width, bytes.size() / 4 * width},
       .dtype = program.wire});
  cast.operands.push_back({.role = program::Role::source,
                           .access = program::Access::read,
                           .range = {gradient_buffer(segment, 0), bytes.begin, bytes.size()}});
  if (program.error_feedback)
    cast.operands.push_back({.role = program::Role::residual,
                             .access = program::Access::read_write,
                             .range = program.residual_range(segment, leaf, bytes.begin, bytes.size())});
  program.instructions.push_back(std::move(cast));
}

void ProgramWriter::snapshot(int lane) {
  program::Instruction snapshot = instruction(program::InstructionKind::snapshot, lane);
  snapshot.deadline = program::DeadlineClass::storage;
  int index = 0;  // of the part within the share
  for (const auto& saved : share_) {
    const auto& place = program.parameter(saved.parameter);
    if (saved.is_residual()) {
      const auto& [segment, offset] = nth(place.uses, saved.use);
      snapshot.operands.push_back({program::Role::residual, index++, program::Access::read,
                                   program.residual_range(segment, saved.leaf, offset, place.size_bytes)});
      continue;
    }
    const bool is_state = saved.slot >= 0;
    ensure(saved.part == (is_state ? place.owned : place.held), "a rank saves all that it has, or nothing");
    snapshot.operands.push_back({is_state ? program::Role::state : program::Role::parameters, index++,
                                 program::Access::read,
                                 is_state ? place.state_range(saved.slot) : place.held_range()});
  }
  if (snapshot_ >= 0)
    snapshot.operands.push_back(
        {program::Role::destination, 0, program::Access::write, program.whole(snapshot_)});
  snapshot.operands.push_back({program::Role::metrics, 0, program::Access::write, program.whole(metrics_)});
  program.instructions.push_back(std::move(snapshot));
}

}  // namespace lockstep::parallel
