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

/// Where in a step the fault occurs. instruction: before an instruction of a kind. write: at a file operation
/// for the step's checkpoint.
enum class FaultPlace { start, begin, instruction, evaluate, save, write };

/// One fault of `--failpoint KIND@RANK,STEP[,PHASE]`: what happens, on which rank, in which optimizer step
/// (from 1, the step under way; for evaluate, save and write: the number of complete steps), and where in it.
struct Failpoint {
  FaultKind kind = FaultKind::kill;
  int rank = 0;
  int64_t step = 1;  ///< 0 only for `start`
  FaultPlace place = FaultPlace::begin;
  program::InstructionKind instruction = program::InstructionKind::load;  ///< if place is instruction
  /// From 1. write: the operation. instruction: the number within its kind, in program order.
  int number = 1;
  int64_t delay_ms = 0;  ///< delay
  bool operator==(const Failpoint&) const = default;
};

/// Throws ConfigError, which says what was expected, what was probably meant, and gives an example.
Failpoint parse_failpoint(const std::string& text);
/// Reads back as the same failpoint. Each failpoint has one text, however it was written.
std::string to_text(const Failpoint& failpoint);

/// "begin", "load", ..., "write:K": for help texts. Instructions take a ":K", too.
std::vector<std::string> phase_names();

}  // namespace lockstep::train
