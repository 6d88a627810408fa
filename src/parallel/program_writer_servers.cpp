// What ProgramWriter has for workers that do not wait for each other, and their servers.

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "parallel/program_writer.h"
#include "program/session_terms.h"
#include "program/step_scalars.h"

namespace lockstep::parallel {

/// A rank may serve while it makes steps of its own, so that all of its programs keep these places free.
/// Servers compute on the host's processor, and messages are between hosts: where the device has memory of
/// its own, all of this is the host's.
void ProgramWriter::add_server_room(const ServerRoom& room) {
  pushing_workers_ = room.workers;
  const bool apart = room.apart;
  int64_t largest = 0;
  served_.resize(partition_.segments.size());
  for (int s = 0; s < static_cast<int>(served_.size()) && room.workers > 0; ++s) {
    const int64_t bytes = ownership_.updated_by(s, rank_).size();
    if (bytes == 0) continue;
    largest = std::max(largest, bytes);
    Served& served = nth(served_, s);
    const auto add = [&](const std::string& name, program::Space space, program::Category category) {
      return program.add_buffer(name, apart ? program::Space::host : space,
                                apart ? program::Category::staging : category, bytes);
    };
    // A worker's replica is of the version that its step has pulled.
    if (ownership_.is_worker(rank_) || apart)
      served.buffer =
          add(fmt::format("served.{}", s), program::Space::parameters, program::Category::parameters);
    for (int slot = 0; slot < room.slots; ++slot)
      for (int worker = 0; worker < room.workers; ++worker)
        served.landings.push_back(add(fmt::format("push.{}.w{}.{}", s, worker, slot),
                                      program::Space::gradients, program::Category::gradients));
    for (int copy = 0; copy < room.copies; ++copy)
      served.copies.push_back(
          add(fmt::format("copy.{}.{}", s, copy), program::Space::parameters, program::Category::parameters));
  }
  // Shared by all ranges, which are sent to a worker one after the other.
  const int64_t slice = std::min(room.slice_bytes, largest);
  for (int worker = 0; worker < room.workers && slice > 0; ++worker)
    outboxes_.push_back(program.add_buffer(fmt::format("answer.w{}", worker),
                                           apart ? program::Space::host : program::Space::parameters,
                                           apart ? program::Category::staging : program::Category::parameters,
                                           program::kSlicesUnderWay * slice));
}

void ProgramWriter::pull(int lane, int group, int segment, int shard, int server,
                         const layout::ByteSpan& bytes) {
  program::Instruction pull = instruction(program::InstructionKind::pull, lane, segment);
  pull.group = group;
  pull.deadline = program::DeadlineClass::communication;
  pull.operands.push_back({program::Role::parameters,
                           shard,
                           program::Access::write,
                           {parameter_buffer(segment), bytes.begin, bytes.size()},
                           server});
  program.instructions.push_back(std::move(pull));
}

void ProgramWriter::push(int lane, int group, int segment, int shard, int server,
                         const layout::ByteSpan& bytes, std::optional<UpdateVerdict> verdict) {
  program::Instruction push = instruction(program::InstructionKind::push, lane, segment);
  push.group = group;
  push.deadline = program::DeadlineClass::communication;
  push.operands.push_back(
      {program::Role::gradients, shard, program::Access::read, gradient_range(segment, 0, bytes), server});
  if (verdict) read_verdict(push, *verdict);
  program.instructions.push_back(std::move(push));
}

void ProgramWriter::serve(int lane, int group, int segment, int shard, int bound) {
  const layout::ByteSpan updated = ownership_.updated_by(segment, rank_);
  if (updated.empty()) return;
  const Served& served = nth(served_, segment);
  program::Instruction serve = instruction(program::InstructionKind::serve, lane, segment);
  serve.group = group;
  serve.bound = bound;
  serve.deadline = program::DeadlineClass::communication;
  const program::ByteRange replica{parameter_buffer(segment),
                                   updated.begin - ownership_.held(segment, rank_).begin, updated.size()};
  const bool apart = served.buffer >= 0;
  serve.operands.push_back({program::Role::parameters, shard,
                            apart ? program::Access::write : program::Access::read_write,
                            apart ? program.whole(served.buffer) : replica});
  if (apart) serve.operands.push_back({program::Role::destination, 0, program::Access::read_write, replica});
  if (state_buffer(segment) >= 0)
    serve.operands.push_back(
        {program::Role::state, 0, program::Access::read_write, program.whole(state_buffer(segment))});
  for (int i = 0; i < static_cast<int>(served.landings.size()); ++i)
    serve.operands.push_back({program::Role::gradients, i, program::Access::write,
                              program.whole(nth(served.landings, i)), i % pushing_workers_});
  for (int i = 0; i < static_cast<int>(served.copies.size()); ++i)
    serve.operands.push_back(
        {program::Role::temporary, i, program::Access::write, program.whole(nth(served.copies, i))});
  for (int worker = 0; worker < static_cast<int>(outboxes_.size()); ++worker)
    serve.operands.push_back({program::Role::temporary, worker, program::Access::write,
                              program.whole(nth(outboxes_, worker)), worker});
  program.instructions.push_back(std::move(serve));
}

}  // namespace lockstep::parallel
