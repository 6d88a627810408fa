#include "train/faults/failpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

constexpr std::array kKinds = {FaultKind::kill,   FaultKind::stop, FaultKind::hang,
                               FaultKind::delay,  FaultKind::nan,  FaultKind::flip,
                               FaultKind::enospc, FaultKind::eio,  FaultKind::error};
/// Instructions of a step that compilers write.
constexpr std::array kInstructions = {program::InstructionKind::constants,
                                      program::InstructionKind::load,
                                      program::InstructionKind::forward,
                                      program::InstructionKind::backward,
                                      program::InstructionKind::backward_input,
                                      program::InstructionKind::backward_weight,
                                      program::InstructionKind::recompute,
                                      program::InstructionKind::add,
                                      program::InstructionKind::cast,
                                      program::InstructionKind::exchange,
                                      program::InstructionKind::all_reduce,
                                      program::InstructionKind::ring_reduce_scatter,
                                      program::InstructionKind::ring_all_gather,
                                      program::InstructionKind::pull,
                                      program::InstructionKind::push,
                                      program::InstructionKind::serve,
                                      program::InstructionKind::agree,
                                      program::InstructionKind::norm,
                                      program::InstructionKind::propose,
                                      program::InstructionKind::ratios,
                                      program::InstructionKind::digest,
                                      program::InstructionKind::update};
constexpr const char* kExample = "an example: --failpoint kill@1,40,backward";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError(
      fmt::format("--failpoint {}: {}; expected KIND@RANK,STEP[,PHASE], {}", text, why, kExample));
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const auto kind : kKinds)
    names.push_back(kind == FaultKind::delay ? "delay:MS" : std::string(name_of(kind)));
  return names;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int64_t number_in(const std::string& text, const std::string& what, std::string_view word, int64_t least,
                  int64_t most) {
  const auto value = number(word);
  if (!value || *value < least || *value > most)
    refuse(text, fmt::format("{} is '{}'; expected a number from {} to {}", what, word, least, most));
  return *value;
}

/// "delay:50" is the name "delay" with the argument "50".
struct NameAndArgument {
  std::string name;
  std::optional<std::string> argument;
  explicit NameAndArgument(std::string_view word) {
    const size_t colon = word.find(':');
    name = trim(word.substr(0, colon));
    if (colon != std::string_view::npos) argument = trim(word.substr(colon + 1));
  }
};

void read_kind(const std::string& text, std::string_view word, Failpoint& failpoint) {
  const NameAndArgument kind(word);
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](FaultKind k) { return name_of(k) == kind.name; });
  if (found == kKinds.end()) {
    std::vector<std::string> names;
    for (const auto known : kKinds) names.emplace_back(name_of(known));
    refuse(text, fmt::format("there is no kind '{}'{}; there are {}", kind.name,
                             did_you_mean(kind.name, names), join(kind_names(), ", ")));
  }
  failpoint.kind = *found;
  if (*found == FaultKind::delay) {
    if (!kind.argument) refuse(text, "delay needs its milliseconds, as in delay:500");
    failpoint.delay_ms = number_in(text, "the delay in milliseconds", *kind.argument, 1, 86400000);
  } else if (kind.argument) {
    refuse(text, fmt::format("{} takes nothing after a ':', found '{}'", kind.name, *kind.argument));
  }
}

void read_phase(const std::string& text, std::string_view word, Failpoint& failpoint) {
  const NameAndArgument phase(word);
  const auto number_of = [&](const char* what) {
    return static_cast<int>(
        number_in(text, fmt::format("the number of the {}", what), *phase.argument, 1, 1000000));
  };
  if (phase.name == "write") {
    if (!phase.argument) refuse(text, "phase write needs the number of the file operation, as in write:3");
    failpoint.place = FaultPlace::write;
    failpoint.number = number_of("file operation");
    return;
  }
  for (const auto kind : kInstructions)
    if (phase.name == program::name_of(kind)) {
      failpoint.place = FaultPlace::instruction;
      failpoint.instruction = kind;
      if (phase.argument) failpoint.number = number_of("instruction");
      return;
    }
  for (const auto& [name, place] :
       {std::pair("start", FaultPlace::start), std::pair("begin", FaultPlace::begin),
        std::pair("evaluate", FaultPlace::evaluate), std::pair("save", FaultPlace::save)})
    if (phase.name == name) {
      if (phase.argument)
        refuse(text, fmt::format("phase {} takes nothing after a ':', found '{}'", name, *phase.argument));
      failpoint.place = place;
      return;
    }
  refuse(text, fmt::format("there is no phase '{}'{}; there are {}", phase.name,
                           did_you_mean(phase.name, phase_names()), join(phase_names(), ", ")));
}

/// Refuses what could never happen.
void check(const std::string& text, const Failpoint& failpoint) {
  const auto instruction = [&](program::InstructionKind kind) {
    return failpoint.place == FaultPlace::instruction && failpoint.instruction == kind;
  };
  const bool in_step = failpoint.place == FaultPlace::begin || failpoint.place == FaultPlace::instruction;
  if (failpoint.place == FaultPlace::start && failpoint.step != 0)
    refuse(text, fmt::format("start is before the first step, so its step is 0, not {}", failpoint.step));
  if (failpoint.place != FaultPlace::start && failpoint.step == 0)
    refuse(text, "steps count from 1; only phase start has step 0");
  if (failpoint.kind == FaultKind::nan && failpoint.place != FaultPlace::begin &&
      !instruction(program::InstructionKind::forward) && !instruction(program::InstructionKind::backward))
    refuse(text, "nan appears in results of forward or backward: its phase is forward or backward, or none");
  if (failpoint.kind == FaultKind::nan && failpoint.number > 1)
    refuse(text, "nan appears in results of the first forward or backward: its phase takes no number");
  if (failpoint.kind == FaultKind::flip && !in_step)
    refuse(text, "flip changes a parameter within a step: its phase is an instruction's or begin, or none");
  const bool fails_files = failpoint.kind == FaultKind::enospc || failpoint.kind == FaultKind::eio;
  if (fails_files && failpoint.place != FaultPlace::write)
    refuse(text, fmt::format(
                     "{} fails a file operation while a checkpoint is written: its phase is write:K, or none",
                     name_of(failpoint.kind)));
}

}  // namespace

std::string_view name_of(FaultKind kind) {
  static constexpr std::array<std::string_view, 9> kNames = {"kill", "stop",   "hang", "delay", "nan",
                                                             "flip", "enospc", "eio",  "error"};
  static_assert(kNames.size() == static_cast<size_t>(FaultKind::error) + 1);
  return nth(kNames, kind);
}

std::vector<std::string> phase_names() {
  std::vector<std::string> names = {"start", "begin"};
  for (const auto kind : kInstructions) names.emplace_back(program::name_of(kind));
  for (const char* name : {"evaluate", "save", "write:K"}) names.emplace_back(name);
  return names;
}

Failpoint parse_failpoint(const std::string& text) {
  const size_t at = text.find('@');
  if (at == std::string::npos) refuse(text, "there is no '@'");
  Failpoint failpoint;
  read_kind(text, std::string_view(text).substr(0, at), failpoint);
  const auto where = split(std::string_view(text).substr(at + 1), ',');
  if (where.size() < 2 || where.size() > 3)
    refuse(text, fmt::format("expected two or three parts after the '@', found {}", where.size()));
  failpoint.rank = static_cast<int>(number_in(text, "the rank", where[0], 0, 1 << 30));
  failpoint.step = number_in(text, "the step", where[1], 0, int64_t{1} << 40);
  if (where.size() == 3) {
    read_phase(text, where[2], failpoint);
  } else if (failpoint.kind == FaultKind::enospc || failpoint.kind == FaultKind::eio) {
    failpoint.place = FaultPlace::write;
  }
  check(text, failpoint);
  return failpoint;
}

std::string to_text(const Failpoint& failpoint) {
  std::string text(name_of(failpoint.kind));
  if (failpoint.kind == FaultKind::delay) text += fmt::format(":{}", failpoint.delay_ms);
  text += fmt::format("@{},{}", failpoint.rank, failpoint.step);
  switch (failpoint.place) {
    case FaultPlace::begin:
      return text;
    case FaultPlace::start:
      return text + ",start";
    case FaultPlace::evaluate:
      return text + ",evaluate";
    case FaultPlace::save:
      return text + ",save";
    case FaultPlace::write:
      return text + fmt::format(",write:{}", failpoint.number);
    case FaultPlace::instruction:
      break;
  }
  text += fmt::format(",{}", program::name_of(failpoint.instruction));
  return failpoint.number > 1 ? text + fmt::format(":{}", failpoint.number) : text;
}

}  // namespace lockstep::train
