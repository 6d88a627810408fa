#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace lockstep::train {

/// What a run does to itself. kill, stop: that signal to its own process. hang: the thread goes no further,
/// while the process lives. nan, flip: wrong numbers. enospc, eio: a file operation of the checkpoint fails.
enum class FaultKind { kill, stop, hang, delay, nan, flip, enospc, eio, error };
std::string_view name_of(FaultKind kind);

/// Where in a step it does it. instruction: before an instruction of a kind. write: at an operation of
/// whoever writes the step's checkpoint.
enum class FaultPlace { start, begin, instruction, evaluate, save, write };

/// One fault of `--failpoint KIND@RANK,STEP[,PHASE]`: what happens, on which rank, in which optimizer step
/// (counted from 1, the step being made; evaluate, save and write: the steps complete), and where in it.
struct Failpoint {
  FaultKind kind = FaultKind::kill;
  int rank = 0;
  int64_t step = 1;  ///< 0 for `start` alone
  FaultPlace place = FaultPlace::begin;
  program::InstructionKind instruction = program::InstructionKind::load;  ///< where place is instruction
  /// Counted from 1. write: the operation. instruction: which one of its kind, in program order.
  int number = 1;
  int64_t delay_ms = 0;  ///< delay
  bool operator==(const Failpoint&) const = default;
};

/// Throws ConfigError, saying what was expected, what was probably meant, and an example.
Failpoint parse_failpoint(const std::string& text);
/// Reads back as the same; one text for each failpoint, however it was written.
std::string to_text(const Failpoint& failpoint);

/// "begin", "load", ..., "write:K": for help texts. Instructions take a ":K", too.
std::vector<std::string> phase_names();

}  // namespace lockstep::train
