#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/gradient_sync.h"

namespace lockstep::parallel {

using Spans = std::vector<layout::ByteSpan>;

inline int64_t size_of(const Spans& spans) {
  int64_t size = 0;
  for (const auto& span : spans) size += span.size();
  return size;
}

/// Of float32 bytes: those of as many elements of another type.
inline int64_t bytes_as(int64_t float32_bytes, DType dtype) { return float32_bytes / 4 * size_of(dtype); }

/// Appends one rank's instructions for one bucket. Spans count float32 bytes.
class BucketWriter {
 public:
  explicit BucketWriter(const BucketSync& sync) : sync_(sync) {}

  int64_t bucket_bytes() const { return sync_.size_bytes; }

  int receive_buffer(std::string_view what, const Spans& spans) {
    return sync_.program.add_buffer(fmt::format("receive.{}.{}", sync_.segment, what), program::Space::arena,
                                    program::Category::workspace,
                                    std::max(bytes_as(size_of(spans), sync_.dtype), int64_t{1}));
  }
  /// The same bytes, one after the other.
  static Spans packed(const Spans& spans) {
    Spans result;
    int64_t at = 0;
    for (const auto& span : spans) {
      result.push_back({at, at + span.size()});
      at += span.size();
    }
    return result;
  }

  Spans shards(int first, int last) const { return sync_.shards.parts(first, last); }
  Spans shard_of(int owner) const {
    const int position = sync_.shards.position(owner);
    return shards(position, position + 1);
  }

  void begin_exchange() { exchange_ = instruction(program::InstructionKind::exchange); }
  void send(int peer, int buffer, const Spans& spans) {
    transfer(program::Role::send, program::Access::read, peer, buffer, spans);
  }
  void receive(int peer, int buffer, const Spans& spans) {
    transfer(program::Role::receive, program::Access::write, peer, buffer, spans);
  }
  void end_exchange() {
    if (!exchange_.operands.empty()) sync_.program.instructions.push_back(std::move(exchange_));
    exchange_ = {};
  }

  /// REQUIRES: `to` and `from` are spans of the same sizes.
  void add(int destination, const Spans& to, int source, const Spans& from) {
    add_on(sync_.lane, destination, to, source, from);
  }
  void add_on(int lane, int destination, const Spans& to, int source, const Spans& from) {
    for (size_t i = 0; i < to.size(); ++i) {
      program::Instruction add = instruction(program::InstructionKind::add);
      add.lane = lane;
      add.group = -1;
      add.deadline = program::DeadlineClass::compute;
      add.operands.push_back(
          operand(program::Role::destination, 0, program::Access::read_write, destination, to[i]));
      add.operands.push_back(operand(program::Role::source, 0, program::Access::read, source, from[i]));
      sync_.program.instructions.push_back(std::move(add));
    }
  }
  /// Copies the same bytes of a buffer of the slots' type to a float32 one.
  void widen_on(int lane, int wide, int narrow, const Spans& spans) {
    for (const auto& span : spans) cast_on(lane, {wide, DType::float32}, {narrow, sync_.dtype}, span);
  }

  program::Instruction instruction(program::InstructionKind kind) const {
    program::Instruction result;
    result.kind = kind;
    result.lane = sync_.lane;
    result.segment = sync_.segment;
    result.group = sync_.group;
    result.deadline = program::DeadlineClass::communication;
    return result;
  }
  program::Operand operand(program::Role role, int index, program::Access access, int buffer,
                           const layout::ByteSpan& span) const {
    return operand_of({buffer, sync_.dtype}, role, index, access, span);
  }

 private:
  struct Typed {
    int buffer;
    DType dtype;
  };
  static program::Operand operand_of(const Typed& of, program::Role role, int index, program::Access access,
                                     const layout::ByteSpan& span) {
    return {.role = role,
            .index = index,
            .access = access,
            .range = {of.buffer, bytes_as(span.begin, of.dtype), bytes_as(span.size(), of.dtype)},
            .dtype = of.dtype};
  }
  void cast_on(int lane, const Typed& to, const Typed& from, const layout::ByteSpan& span) {
    program::Instruction cast = instruction(program::InstructionKind::cast);
    cast.lane = lane;
    cast.group = -1;
    cast.deadline = program::DeadlineClass::compute;
    cast.operands.push_back(operand_of(to, program::Role::destination, 0, program::Access::write, span));
    cast.operands.push_back(operand_of(from, program::Role::source, 0, program::Access::read, span));
    sync_.program.instructions.push_back(std::move(cast));
  }
  void transfer(program::Role role, program::Access access, int peer, int buffer, const Spans& spans) {
    for (const auto& span : spans) {
      const int index = static_cast<int>(exchange_.operands.size());
      exchange_.operands.push_back(operand(role, index, access, buffer, span));
      exchange_.operands.back().peer = sync_.first + peer;
    }
  }

  const BucketSync& sync_;
  program::Instruction exchange_;
};

}  // namespace lockstep::parallel
