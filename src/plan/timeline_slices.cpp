#include "plan/timeline_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/hash.h"
#include "base/index.h"
#include "layout/layout.h"
#include "lockstep/ops.h"
#include "plan/serving_slices.h"
#include "plan/step_sketch.h"
#include "program/ring_schedule.h"

namespace lockstep::plan {
namespace {

using observe::SliceKind;
using observe::TimelineSlice;
using program::Instruction;
using program::InstructionKind;
using program::Role;

SliceKind kind_of(const program::Program& program, const Instruction& instruction) {
  if (program::communicates(instruction.kind)) return SliceKind::communication;
  const bool copies =
      instruction.kind == InstructionKind::load || instruction.kind == InstructionKind::snapshot;
  return copies || program.lane(instruction.lane).kind == program::LaneKind::copy ? SliceKind::copy
                                                                                  : SliceKind::compute;
}

/// What a communication moves; what anything else reads and writes.
int64_t bytes_of(const Instruction& instruction) {
  int64_t bytes = 0;
  for (const program::Operand& operand : instruction.operands) {
    const bool moved = operand.role == Role::data || operand.role == Role::send ||
                       operand.role == Role::receive ||
                       (instruction.kind == InstructionKind::pull && operand.role == Role::parameters) ||
                       (instruction.kind == InstructionKind::push && operand.role == Role::gradients);
    if (moved || !program::communicates(instruction.kind)) bytes += operand.range.size_bytes;
  }
  return bytes;
}

std::string_view name_of_phase(ops::KernelPhase phase) {
  switch (phase) {
    case ops::KernelPhase::forward:
      return "forward";
    case ops::KernelPhase::backward_input:
      return "backward_input";
    case ops::KernelPhase::backward_weight:
      return "backward_weight";
  }
  return "";
}

/// The server that a push goes to, or a pull comes from; -1 for other instructions.
int server_of(const program::Program& program, const Instruction& instruction) {
  const bool pulls = instruction.kind == InstructionKind::pull;
  if (!pulls && instruction.kind != InstructionKind::push) return -1;
  for (const program::Operand& operand : instruction.operands)
    if (operand.role == (pulls ? Role::parameters : Role::gradients))
      return program.group(instruction.group).members[static_cast<size_t>(operand.peer)];
  return -1;
}

}  // namespace

std::string layers_of(const compile::CompiledRun& run, int segment) {
  const model::Segment& of = run.partition().segment(segment);
  const auto& nodes = run.graph().nodes;
  return of.first_node == of.last_node
             ? nth(nodes, of.first_node).name
             : fmt::format("{} to {}", nth(nodes, of.first_node).name, nth(nodes, of.last_node).name);
}

void add_step(const compile::CompiledRun& run, uint64_t iteration, TimelineSlice& slice) {
  const int64_t each = iterations_per_step(run), number = static_cast<int64_t>(iteration);
  slice.arguments.emplace_back("step", number / each + 1);
  if (run.layout().has_sessions() && each > 1) slice.arguments.emplace_back("push", number % each + 1);
}

TimelineSlices::TimelineSlices(const compile::CompiledRun& run, const program::Program& program)
    : run_(run), program_(program), messages_(program.instructions.size()) {
  number_messages();
  find_ranges();
}

// Ranges of a server are numbered in the order in which they are pulled.
void TimelineSlices::find_ranges() {
  std::map<int, int> counts;                        // by server
  std::map<std::pair<int, int>, int> range_number;  // by server and segment
  for (const InstructionKind kind : {InstructionKind::pull, InstructionKind::push})
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.kind != kind) continue;
      const int server = server_of(program_, instruction);
      const std::pair place{server, instruction.segment};
      if (kind == InstructionKind::pull) range_number[place] = counts[server]++;
      messages_[i].server = server;
      messages_[i].range = range_number.at(place);
    }
}

// Messages of a pair of ranks arrive in the order in which they are sent, and as many in each iteration.
void TimelineSlices::number_messages() {
  std::map<std::tuple<int, int, int>, uint64_t> counts;  // by group, sender, receiver
  const auto number = [&](int group, int from, int to) {
    const uint64_t way = hash64(fmt::format("{}/{}/{}", program_.group(group).name, from, to));
    return hash_combine(way, counts[{group, from, to}]++);
  };
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (instruction.group < 0) continue;
    const program::Members& members = program_.group(instruction.group).members;
    const int own = program_.rank;
    if (instruction.kind == InstructionKind::exchange)
      for (const program::Operand& operand : instruction.operands) {
        if (operand.role != Role::send && operand.role != Role::receive) continue;
        const int peer = members[static_cast<size_t>(operand.peer)];
        if (operand.role == Role::send)
          messages_[i].sends.push_back(number(instruction.group, own, peer));
        else
          messages_[i].receives.push_back(number(instruction.group, peer, own));
      }
    // Of its rounds one arrow, to the next rank.
    const auto count = static_cast<int>(members.size());
    if (!program::ring_pass_of(instruction.kind) || count < 2) continue;
    const int place = members.index_of(own);
    const int next = members[static_cast<size_t>((place + 1) % count)];
    const int before = members[static_cast<size_t>((place + count - 1) % count)];
    messages_[i].sends.push_back(number(instruction.group, own, next));
    messages_[i].receives.push_back(number(instruction.group, before, own));
  }
}

std::vector<observe::TimelineRow> TimelineSlices::rows() const {
  std::vector<observe::TimelineRow> rows{{kPhaseRow, "steps"}};
  for (size_t lane = 0; lane < program_.lanes.size(); ++lane)
    rows.push_back({static_cast<int>(lane) + 1, fmt::format("{} ({})", program_.lanes[lane].name,
                                                            program::name_of(program_.lanes[lane].kind))});
  rows.push_back({wait_row(), "waits"});
  return rows;
}

/// "send to 1, receive from 0": ranks of the job.
std::string TimelineSlices::name_of_exchange(const Instruction& instruction) const {
  const program::Members& members = program_.group(instruction.group).members;
  std::set<std::string> parts;
  for (const program::Operand& operand : instruction.operands)
    if (operand.role == Role::send || operand.role == Role::receive)
      parts.insert(fmt::format("{} {}", operand.role == Role::send ? "send to" : "receive from",
                               members[static_cast<size_t>(operand.peer)]));
  return parts.empty() ? "exchange" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string TimelineSlices::name_of(int index) const {
  const Instruction& instruction = program_.instruction(index);
  std::string name(program::name_of(instruction.kind));
  if (instruction.kind == InstructionKind::exchange) return name_of_exchange(instruction);
  if (instruction.segment < 0) return name;
  if (program::communicates(instruction.kind)) return fmt::format("{} bucket {}", name, instruction.segment);
  return name + " " + layers_of(run_, instruction.segment);
}

TimelineSlice TimelineSlices::of_instruction(int index, uint64_t iteration, double begin, double end) const {
  const Instruction& instruction = program_.instruction(index);
  TimelineSlice slice{.row = instruction.lane + 1,
                      .kind = kind_of(program_, instruction),
                      .name = name_of(index),
                      .begin = begin,
                      .end = end};
  auto& arguments = slice.arguments;
  add_step(run_, iteration, slice);
  arguments.emplace_back("instruction", int64_t{index});
  if (instruction.segment >= 0) {
    arguments.emplace_back("bucket", int64_t{instruction.segment});
    arguments.emplace_back("layers", layers_of(run_, instruction.segment));
  }
  if (instruction.micro_batch >= 0) arguments.emplace_back("micro_batch", int64_t{instruction.micro_batch});
  arguments.emplace_back("bytes", bytes_of(instruction));
  if (instruction.group >= 0) arguments.emplace_back("group", program_.group(instruction.group).name);
  const Messages& messages = nth(messages_, index);
  for (const uint64_t message : messages.sends) slice.sends.push_back(hash_combine(message, iteration));
  for (const uint64_t message : messages.receives) slice.receives.push_back(hash_combine(message, iteration));
  const int worker = program_.rank;
  if (instruction.kind == InstructionKind::push)
    slice.sends.push_back(push_number(worker, messages.server, messages.range, iteration));
  if (instruction.kind == InstructionKind::pull)
    slice.receives.push_back(pull_number(worker, messages.server, messages.range, iteration));
  return slice;
}

TimelineSlice TimelineSlices::of_kernel(int index, int node, ops::KernelPhase phase, double begin,
                                        double end) const {
  const model::Node& of = run_.graph().node(node);
  return {.row = program_.instruction(index).lane + 1,
          .kind = SliceKind::kernel,
          .name = of.name,
          .begin = begin,
          .end = end,
          .arguments = {{"op", std::string(lockstep::name_of(of.op))},
                        {"pass", std::string(name_of_phase(phase))}},
          .sends = {},
          .receives = {}};
}

TimelineSlice TimelineSlices::of_wait(int index, double begin, double end) const {
  return {.row = wait_row(),
          .kind = SliceKind::wait,
          .name = "waits for " + name_of(index),
          .begin = begin,
          .end = end,
          .arguments = {{"instruction", int64_t{index}}},
          .sends = {},
          .receives = {}};
}

TimelineSlice TimelineSlices::of_wait_for_grant(double begin, double end) const {
  return {.row = wait_row(),
          .kind = SliceKind::wait,
          .name = "waits for a step to be granted",
          .begin = begin,
          .end = end,
          .arguments = {},
          .sends = {},
          .receives = {}};
}

TimelineSlice TimelineSlices::of_phase(std::string name, double begin, double end) {
  return {.row = kPhaseRow,
          .kind = SliceKind::phase,
          .name = std::move(name),
          .begin = begin,
          .end = end,
          .arguments = {},
          .sends = {},
          .receives = {}};
}

std::vector<TimelineSlice> TimelineSlices::waits_between(std::span<const Times> times) const {
  std::vector<TimelineSlice> waits;
  std::map<int, double> ends;  // by compute lane: of its last instruction
  for (size_t i = 0; i < times.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (program_.lane(instruction.lane).kind != program::LaneKind::compute) continue;
    const auto before = ends.find(instruction.lane);
    if (before != ends.end() && times[i].begin > before->second) {
      std::optional<int> last;
      for (const program::Dependency& dependency : instruction.after) {
        if (dependency.distance != 0 || nth(times, dependency.instruction).end <= before->second) continue;
        if (!last || nth(times, dependency.instruction).end > nth(times, *last).end)
          last = dependency.instruction;
      }
      if (last) waits.push_back(of_wait(*last, before->second, times[i].begin));
    }
    ends[instruction.lane] = times[i].end;
  }
  return waits;
}

observe::Timeline predict_timeline(const compile::CompiledRun& run,
                                   std::span<const program::Program> programs,
                                   const std::vector<int>& hosts) {
  const ProgramTimeline sketch = sketch_step(run, programs, hosts);
  const bool measured = run.profile().has_value();
  const double unit = measured ? 1e6 : sketch.duration() > 0 ? kStepWithoutProfileUs / sketch.duration() : 1;
  observe::Timeline timeline{.source = measured ? "predicted by a profile" : "estimated",
                             .layout = layout::to_string(run.layout()),
                             .config_hash = {},
                             .first_step = 1,
                             .last_step = 1,
                             .notes = {},
                             .ranks = {}};
  if (!measured)
    timeline.notes.push_back(
        fmt::format("times are relative, because there is no parallel.profile: the step is drawn {} us long",
                    kStepWithoutProfileUs));
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    const TimelineSlices slices(run, programs[rank]);
    observe::RankTimeline part{
        .rank = static_cast<int>(rank), .host = {}, .rows = slices.rows(), .slices = {}};
    std::vector<TimelineSlices::Times> times;
    for (const TimedInstruction& timed : sketch.ranks[rank])
      times.push_back({(timed.start - sketch.begin) * unit, (timed.end - sketch.begin) * unit});
    for (size_t i = 0; i < times.size(); ++i)
      if (!programs[rank].instructions[i].anew)
        part.slices.push_back(slices.of_instruction(static_cast<int>(i), 0, times[i].begin, times[i].end));
    for (auto& wait : slices.waits_between(times)) part.slices.push_back(std::move(wait));
    part.slices.push_back(TimelineSlices::of_phase("step 1", 0, sketch.duration() * unit));
    timeline.ranks.push_back(std::move(part));
  }
  return timeline;
}

}  // namespace lockstep::plan
