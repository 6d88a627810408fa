#include "train/faults/position.h"

#include <fmt/format.h>

#include "program/instruction_rules.h"

namespace lockstep::train {
namespace {

struct PhaseText {
  control::Activity activity;
  const char* text;
};

PhaseText text_of(Phase phase) {
  switch (phase) {
    case Phase::outside:
      return {control::Activity::idle, "its caller's own work"};
    case Phase::start:
      return {control::Activity::input, "the start"};
    case Phase::prepare:
      return {control::Activity::input, "the preparation of programs and data"};
    case Phase::prove:
      return {control::Activity::compute, "the proof of all ranks' programs"};
    case Phase::meet:
      return {control::Activity::waiting, "a meeting of all ranks"};
    case Phase::restore:
      return {control::Activity::storage, "the restoring of a checkpoint"};
    case Phase::between_steps:
      return {control::Activity::compute, "the work between two steps"};
    case Phase::locate:
      return {control::Activity::compute, "the search for what is not finite"};
    case Phase::settle:
      return {control::Activity::waiting, "the wait for a checkpoint"};
    case Phase::report:
      return {control::Activity::compute, "the report at the end"};
    case Phase::write_text:
      return {control::Activity::compute, "the writing of text (trainer.sample)"};
  }
  return {control::Activity::idle, "an unknown place"};
}

/// The layers of a segment, or the parameters of its bucket: what the user's config calls them.
std::string contents_of(const program::Instruction& instruction, const compile::CompiledRun& compiled) {
  if (instruction.segment < 0) return "";
  const auto s = static_cast<size_t>(instruction.segment);
  const auto& graph = compiled.graph();
  if (program::runs_segment(instruction.kind)) {
    const auto& segment = compiled.partition().segments[s];
    const auto& first = graph.node(segment.first_node).name;
    const auto& last = graph.node(segment.last_node).name;
    return first == last ? fmt::format("; layer {}", first) : fmt::format("; layers {} to {}", first, last);
  }
  const auto& entries = compiled.partition().buckets[s].entries;
  if (entries.empty()) return "";
  const auto& name = graph.parameter(entries[0].parameter).name;
  return entries.size() == 1 ? fmt::format("; tensor {}", name)
                             : fmt::format("; tensor {} and {} more", name, entries.size() - 1);
}

}  // namespace

void enter_phase(control::Progress* progress, Phase phase) {
  if (progress != nullptr)
    progress->enter(control::Progress::kMainSlot, text_of(phase).activity, kNoProgram,
                    static_cast<int>(phase));
}

std::string describe_position(const control::Progress::Entry& entry, const Worker* worker) {
  if (entry.program == kNoProgram) return text_of(static_cast<Phase>(entry.instruction)).text;
  if (entry.program == kSaving)
    return fmt::format("the writing of a checkpoint (file operation {})", entry.instruction);
  const program::Program* program = worker == nullptr ? nullptr : worker->program_of(entry.program);
  if (program == nullptr || static_cast<size_t>(entry.instruction) >= program->instructions.size())
    return fmt::format("instruction {} of program {}", entry.instruction, entry.program);
  return program::describe(*program, entry.instruction) +
         contents_of(program->instruction(entry.instruction), worker->compiled());
}

}  // namespace lockstep::train
