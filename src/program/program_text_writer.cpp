#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <set>

#include "base/ensure.h"
#include "program/program.h"
#include "program/text_line.h"

namespace lockstep::program {
namespace {

/// Names of ordinary characters stand bare, others in quotes with \" and \\.
std::string quoted(const std::string& name) {
  bool bare = !name.empty();
  for (char c : name) bare = bare && stands_bare(c);
  if (bare) return name;
  std::string text = "\"";
  for (char c : name) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

template <class Named>
void require_unique_names(const std::vector<Named>& list, std::string_view what) {
  std::set<std::string_view> seen;
  for (const Named& one : list)
    ensure(seen.insert(one.name).second, fmt::format("two {}s are named '{}'", what, one.name));
}

class Writer {
 public:
  explicit Writer(const Program& program) : program_(program) {}

  std::string write() {
    require_unique_names(program_.lanes, "lane");
    require_unique_names(program_.groups, "group");
    require_unique_names(program_.buffers, "buffer");
    put("program {} rank={} world_size={} reduction={} leaves={} micro_batches_per_leaf={}",
        quoted(program_.name), program_.rank, program_.world_size,
        program_.reduction == layout::Reduction::fast ? "fast" : "reproducible", program_.leaves,
        program_.micro_batches_per_leaf);
    if (program_.replicas != 0) put(" replicas={}", program_.replicas);
    if (program_.wire != DType::float32) put(" wire={}", name_of(program_.wire));
    if (program_.error_feedback) put(" error_feedback=true");
    put("\n");
    for (const Lane& lane : program_.lanes) put("lane {} {}\n", quoted(lane.name), name_of(lane.kind));
    for (const Group& group : program_.groups)
      put("group {} {}{}\n", quoted(group.name), to_text(group.members),
          group.transport == Transport::host ? "" : fmt::format(" {}", name_of(group.transport)));
    for (const ProgramBuffer& buffer : program_.buffers) {
      put("buffer {} space={} category={} size={}", quoted(buffer.name), name_of(buffer.space),
          name_of(buffer.category), buffer.size_bytes);
      if (buffer.offset >= 0) put(" offset={}", buffer.offset);
      put("\n");
    }
    for (const ParameterPlace& place : program_.parameters) write_place(place);
    for (const ResidualPlace& place : program_.residuals)
      put("residuals {} segment={} leaf={} leaves={}\n",
          quoted(program_.buffers.at(static_cast<size_t>(place.buffer)).name), place.segment,
          place.first_leaf, place.leaves);
    for (size_t i = 0; i < program_.instructions.size(); ++i) write_instruction(i);
    return std::move(text_);
  }

 private:
  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  void write_place(const ParameterPlace& place) {
    put("parameter {}", quoted(place.name));
    if (place.buffer >= 0)
      put(" buffer={}", quoted(program_.buffers.at(static_cast<size_t>(place.buffer)).name));
    put(" offset={} size={}", place.offset, place.size_bytes);
    // Who has a place holds all, unless the text says otherwise.
    if (place.buffer >= 0 ? !place.is_held_whole() : !place.held.empty())
      put(" holds={}", tensor::to_text(place.held));
    if (place.narrow_buffer >= 0)
      put(" narrow={} narrow_offset={}",
          quoted(program_.buffers.at(static_cast<size_t>(place.narrow_buffer)).name), place.narrow_offset);
    for (const auto& state : place.states)
      put(" state={}@{}", quoted(program_.buffers.at(static_cast<size_t>(state.buffer)).name), state.offset);
    if (!place.owned.empty())
      put(" owns={}", place.owned.is_whole(place.elements()) ? "all" : tensor::to_text(place.owned));
    if (place.whole_scratch != 0) put(" whole={}", place.whole_scratch);
    put(" uses");
    for (const auto& use : place.uses) put(" {}+{}", use.segment, use.bucket_offset);
    put("\n");
  }

  void write_instruction(size_t number) {
    const Instruction& i = program_.instructions[number];
    put("{} {} @{}", number, name_of(i.kind), quoted(program_.lanes.at(static_cast<size_t>(i.lane)).name));
    if (i.segment >= 0) put(" segment={}", i.segment);
    if (i.micro_batch >= 0) put(" micro_batch={}", i.micro_batch);
    if (i.leaf >= 0) put(" leaf={}", i.leaf);
    if (i.leaves != 1) put(" leaves={}", i.leaves);
    if (i.accumulate) put(" accumulate");
    if (i.ordered) put(" ordered");
    if (i.anew) put(" anew");
    if (i.group >= 0) put(" group={}", quoted(program_.groups.at(static_cast<size_t>(i.group)).name));
    if (!i.blocks.empty()) put(" blocks={}", to_text(i.blocks));
    if (i.bound >= 0) put(" bound={}", i.bound);
    if (i.deadline != DeadlineClass::compute)
      put(" deadline={}", i.deadline == DeadlineClass::communication ? "communication"
                          : i.deadline == DeadlineClass::input       ? "input"
                                                                     : "storage");
    std::optional<Access> section;
    for (const Operand& operand : i.operands) {
      if (section != operand.access)
        put(" {}", operand.access == Access::read    ? "reads"
                   : operand.access == Access::write ? "writes"
                                                     : "updates");
      section = operand.access;
      write_operand(operand);
    }
    if (!i.after.empty()) put(" after");
    for (const Dependency& dependency : i.after)
      put(" {}{}", dependency.instruction, dependency.distance == 1 ? "'" : "");
    put("\n");
  }

  void write_operand(const Operand& operand) {
    const ProgramBuffer& buffer = program_.buffers.at(static_cast<size_t>(operand.range.buffer));
    put(" {}", name_of(operand.role));
    if (operand.index != 0) put(".{}", operand.index);
    put(":{}", quoted(buffer.name));
    if (operand.range.offset != 0 || operand.range.size_bytes != buffer.size_bytes)
      put("[{}+{}]", operand.range.offset, operand.range.size_bytes);
    if (operand.peer >= 0) put("@{}", operand.peer);
    if (operand.dtype != DType::float32) put("~{}", name_of(operand.dtype));
    if (operand.position != 0) put("^{}", operand.position);
  }

  const Program& program_;
  std::string text_;
};

}  // namespace

std::string to_text(const Program& program) { return Writer(program).write(); }

}  // namespace lockstep::program
