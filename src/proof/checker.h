#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace lockstep::proof {

struct ModelFlow;

struct CheckFinding {
  enum class Property { structure, matching, deadlock, data, mathematics } property;
  int rank = -1;
  int instruction = -1;  ///< -1 if no single one is to blame
  std::string message;   ///< names instruction, rank, tensor or range, and what would be right
};

std::string_view name_of(CheckFinding::Property property);

struct CheckOptions {
  int max_findings = 20;
  const ModelFlow* flow = nullptr;  ///< what the model's graph says; null: programs alone are asked
  /// Called again and again, from one small piece of the work to the next, for whoever waits for it; may be
  /// empty.
  std::function<void()> gets_on;
};

/// Proves, without communication, what docs/step-program.md lists: matching, freedom from deadlock with zero
/// buffering, an order of every two conflicting accesses, and no read before a write. Each `update` must get
/// the canonical tree (REPRODUCIBLE), or each leaf exactly once (FAST). With `flow`, segments must pass on
/// exactly what the graph says. Unrolls two iterations. `programs` holds the programs of all ranks, by rank.
/// An empty result means: proven.
std::vector<CheckFinding> check_programs(std::span<const program::Program> programs,
                                         const CheckOptions& options = {});

/// Throws InternalError with all findings, if any.
void ensure_checked(std::span<const program::Program> programs, const CheckOptions& options = {});

}  // namespace lockstep::proof
