#include "train/faults/failpoints.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

/// Failpoints that this run, or one before it, has seen act.
std::set<std::string> read_log(const std::string& path) {
  std::set<std::string> texts;
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return texts;
  for (const auto& line : split(read_text_file(path), '\n'))
    if (const auto words = split(line, ' '); words.size() > 1) texts.insert(words[1]);
  return texts;
}

/// By one write of its own, so that it is there whatever happens next, and lines of several ranks stay whole.
void write_log(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!written)
    throw IoError(fmt::format("cannot write {} (LOCKSTEP_FAILPOINT_LOG): {}", path, std::strerror(error)));
}

int64_t wall_clock_microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

bool overlap(const program::ByteRange& a, const program::ByteRange& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.size_bytes && b.offset < a.offset + a.size_bytes;
}

/// Where a NaN goes: into `range`, before `instruction`, which reads it.
struct Target {
  int instruction;
  program::ByteRange range;
};

/// What the first instruction of `producer`'s kind with a result in `role` wrote, where it is read first.
std::optional<Target> find_target(const program::Program& program, program::InstructionKind producer,
                                  program::Role role, program::InstructionKind reader_kind, bool any_reader) {
  const auto& instructions = program.instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].kind != producer) continue;
    for (const auto& written : instructions[i].operands) {
      if (written.role != role || written.access == program::Access::read) continue;
      for (size_t j = i + 1; j < instructions.size(); ++j)
        for (const auto& read : instructions[j].operands)
          if ((any_reader || instructions[j].kind == reader_kind) && read.access != program::Access::write &&
              overlap(written.range, read.range))
            return Target{static_cast<int>(j), written.range};
    }
  }
  return std::nullopt;
}

/// forward: an activation between two segments, or the loss where the model is a single one. backward: a
/// gradient.
std::optional<Target> nan_target(const program::Program& program, const Failpoint& failpoint) {
  using Kind = program::InstructionKind;
  struct Wanted {
    Kind kind;
    program::Role role;
    Kind reader;
    bool any_reader;
  };
  const auto first_target = [&](const std::vector<Wanted>& list) {
    std::optional<Target> found;
    for (const Wanted& wanted : list)
      if (!found) found = find_target(program, wanted.kind, wanted.role, wanted.reader, wanted.any_reader);
    return found;
  };
  const bool forward = failpoint.place == FaultPlace::instruction && failpoint.instruction == Kind::forward;
  if (!forward)
    return first_target({{Kind::backward, program::Role::gradients, {}, true},
                         {Kind::backward_weight, program::Role::gradients, {}, true},
                         {Kind::backward_input, program::Role::gradients, {}, true}});
  return first_target({{Kind::forward, program::Role::output, Kind::forward, false},
                       {Kind::forward, program::Role::metrics, Kind::agree, false},
                       // All that a stage makes may be for the next one.
                       {Kind::forward, program::Role::output, Kind::exchange, false}});
}

void write_nan(device::Device& device, std::byte* at, bool is_double) {
  const double wide = std::numeric_limits<double>::quiet_NaN();
  const float narrow = std::numeric_limits<float>::quiet_NaN();
  is_double ? device.copy_now(at, &wide, sizeof wide) : device.copy_now(at, &narrow, sizeof narrow);
}

/// The highest bit of the fraction, which changes a value by a quarter to a half; 0 becomes 2.
void flip_bit(device::Device& device, std::byte* at) {
  uint32_t bits = 0;
  device.copy_now(&bits, at, sizeof bits);
  bits ^= (bits << 1) == 0 ? uint32_t{1} << 30 : uint32_t{1} << 22;
  device.copy_now(at, &bits, sizeof bits);
}

/// What lies here of the first parameter that does: a stage, or a server, holds some of them, or parts.
std::optional<program::ByteRange> first_held(const program::Program& program) {
  for (const program::ParameterPlace& place : program.parameters)
    if (!place.held.empty()) return place.held_range();
  return std::nullopt;
}

/// Of the instructions of its kind, in program order, from 1.
int number_in_kind(const program::Program& program, int instruction) {
  const auto begin = program.instructions.begin();
  const program::InstructionKind kind = program.instruction(instruction).kind;
  return 1 + static_cast<int>(std::count_if(begin, begin + instruction,
                                            [&](const auto& one) { return one.kind == kind; }));
}

/// Whether the instruction is where `failpoint` waits.
bool meant(const Failpoint& failpoint, const program::Program& program, int instruction) {
  const bool steps = program.name == "step" || program.name == "serve";
  switch (failpoint.place) {
    case FaultPlace::begin:
      return steps;
    case FaultPlace::instruction:
      return steps && program.instruction(instruction).kind == failpoint.instruction &&
             number_in_kind(program, instruction) == failpoint.number;
    case FaultPlace::evaluate:
      return program.name == "evaluate";
    case FaultPlace::save:
      return program.name == "boundary";
    case FaultPlace::start:
    case FaultPlace::write:
      return false;
  }
  return false;
}

}  // namespace

std::unique_ptr<Failpoints> Failpoints::parse(const std::vector<std::string>& texts, int rank,
                                              int world_size) {
  std::vector<Failpoint> own;
  std::set<std::string> seen;
  for (const auto& text : texts) {
    const Failpoint failpoint = parse_failpoint(text);
    if (failpoint.rank >= world_size)
      throw ConfigError(fmt::format("--failpoint {}: there is no rank {}; the job has ranks 0 to {}", text,
                                    failpoint.rank, world_size - 1));
    if (!seen.insert(to_text(failpoint)).second)
      throw ConfigError(fmt::format("--failpoint {}: given twice", text));
    if (failpoint.rank == rank) own.push_back(failpoint);
  }
  if (own.empty()) return nullptr;
  return std::unique_ptr<Failpoints>(new Failpoints(std::move(own)));
}

Failpoints::Failpoints(std::vector<Failpoint> failpoints) {
  if (const char* path = std::getenv("LOCKSTEP_FAILPOINT_LOG")) log_path_ = path;
  const auto done = read_log(log_path_);
  for (const auto& failpoint : failpoints)
    if (!done.contains(to_text(failpoint))) armed_.push_back({failpoint});
}

void Failpoints::check(const program::Program& step, const program::Program& serve) const {
  std::vector<std::string> kinds;
  std::map<program::InstructionKind, int> most;  // of each kind in one of the programs
  for (const program::Program* program : {&step, &serve}) {
    std::map<program::InstructionKind, int> count;
    for (const auto& instruction : program->instructions) {
      int& so_far = most[instruction.kind];
      if (so_far == 0) kinds.emplace_back(program::name_of(instruction.kind));
      so_far = std::max(so_far, ++count[instruction.kind]);
    }
  }
  for (const auto& armed : armed_) {
    const Failpoint& failpoint = armed.failpoint;
    const int there = failpoint.place == FaultPlace::instruction ? most[failpoint.instruction] : 0;
    if (failpoint.place == FaultPlace::instruction && there == 0)
      throw ConfigError(fmt::format("--failpoint {}: rank {}'s steps have no instruction '{}'; they have {}",
                                    to_text(failpoint), failpoint.rank,
                                    program::name_of(failpoint.instruction), join(kinds, ", ")));
    if (failpoint.place == FaultPlace::instruction && failpoint.number > there)
      throw ConfigError(fmt::format("--failpoint {}: rank {}'s steps have {} instruction{} '{}'",
                                    to_text(failpoint), failpoint.rank, there, there == 1 ? "" : "s",
                                    program::name_of(failpoint.instruction)));
    if (failpoint.kind == FaultKind::flip && !first_held(step))
      throw ConfigError(fmt::format("--failpoint {}: rank {} holds no parameters; name another one",
                                    to_text(failpoint), failpoint.rank));
    if (failpoint.kind == FaultKind::nan && !nan_target(step, failpoint))
      throw ConfigError(fmt::format(
          "--failpoint {}: rank {} is a server and computes no activations or gradients; name a worker",
          to_text(failpoint), failpoint.rank));
  }
}

bool Failpoints::claim(Armed& armed, const std::string& where) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(armed.fired, true)) return false;
  if (!log_path_.empty())
    write_log(log_path_,
              fmt::format("{} {} {}\n", wall_clock_microseconds(), to_text(armed.failpoint), where));
  return true;
}

void Failpoints::act(const Failpoint& failpoint, const std::string& where) const {
  switch (failpoint.kind) {
    case FaultKind::kill:
      ::kill(::getpid(), SIGKILL);
      sleep_for_ever();  // until it arrives
    case FaultKind::stop:
      ::kill(::getpid(), SIGSTOP);
      return;
    case FaultKind::hang:
      sleep_for_ever();
    case FaultKind::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(failpoint.delay_ms));
      return;
    case FaultKind::error:
      throw Error(fmt::format("failpoint {}, {}", to_text(failpoint), where));
    case FaultKind::nan:
    case FaultKind::flip:
    case FaultKind::enospc:
    case FaultKind::eio:
      return;
  }
}

void Failpoints::at_start() {
  for (auto& armed : armed_)
    if (armed.failpoint.place == FaultPlace::start && claim(armed, "at the start"))
      act(armed.failpoint, "at the start");
}

void Failpoints::before_instruction(const program::Program& program, int instruction, int64_t step,
                                    const run::ProgramMemory& memory) {
  for (auto& armed : armed_) {
    const Failpoint& failpoint = armed.failpoint;
    const bool steps = program.name == "step" || program.name == "serve";
    if (leaves_out_steps_ && steps ? armed.fired || failpoint.step > step : failpoint.step != step) continue;
    if (failpoint.kind == FaultKind::nan) {
      if (program.name == "step") spoil(armed, program, instruction, memory);
      continue;
    }
    if (!meant(failpoint, program, instruction)) continue;
    const std::string where =
        fmt::format("step {}, before {}", step, program::describe(program, instruction));
    if (!claim(armed, where)) continue;
    if (failpoint.kind == FaultKind::flip)
      flip_bit(memory.device(), memory.at(program, first_held(program).value()));
    act(failpoint, where);
  }
}

/// In every pass through its step: the replay that searches for the first NaN shall meet it again.
void Failpoints::spoil(Armed& armed, const program::Program& program, int instruction,
                       const run::ProgramMemory& memory) {
  const auto target = nan_target(program, armed.failpoint);
  if (!target || target->instruction != instruction) return;
  claim(armed,
        fmt::format("step {}, before {}", armed.failpoint.step, program::describe(program, instruction)));
  const program::Space space = program.buffer(target->range.buffer).space;
  write_nan(memory.device(), memory.at(program, target->range),
            /*is_double=*/space == program::Space::scalars);
}

const Failpoint* Failpoints::at_operation(int64_t step, int operation, const std::string& path) {
  for (auto& armed : armed_) {
    const Failpoint& failpoint = armed.failpoint;
    if (failpoint.place != FaultPlace::write || failpoint.step != step || failpoint.number != operation)
      continue;
    const std::string where =
        fmt::format("checkpoint of step {}, before operation {} on {}", step, operation, path);
    if (!claim(armed, where)) continue;
    if (failpoint.kind == FaultKind::enospc || failpoint.kind == FaultKind::eio) return &failpoint;
    act(failpoint, where);
  }
  return nullptr;
}

}  // namespace lockstep::train
