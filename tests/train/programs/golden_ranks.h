#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program/step_scalars.h"
#include "run/executor.h"
#include "train/programs/golden_models.h"
#include "train/thread_ranks.h"

namespace lockstep::train {

/// What programs of a model leave behind after some iterations: everything that no layout may change.
struct GoldenOutcome {
  std::vector<double> losses, counts;                    ///< by iteration
  std::vector<double> norms;                             ///< by iteration; empty where no rank knows any
  std::map<std::string, std::vector<float>> parameters;  ///< those that some rank holds
  bool operator==(const GoldenOutcome&) const = default;
};

struct GoldenRun {
  /// Where set, lanes are threads of the asynchronous CPU device; otherwise the inline executor runs them.
  std::optional<device::AsyncCpuOptions> asynchronous = {};
  int iterations = 3;
  /// What a rank's snapshot says of how it went; and what it has copied, afterwards.
  std::function<bool(int rank)> saves = [](int) { return true; };
  std::function<void(int rank, const program::Program&, const run::ProgramMemory&)> look = {};
};

/// Executes one program per rank, threads as ranks, on batches of numbers that depend on their place in the
/// global batch alone, from equal first values of parameters and empty optimizer state. Ranks that know the
/// same number must agree. `model` may be executed by several at once.
GoldenOutcome execute(const GoldenModel& model, std::vector<program::Program> programs,
                      const GoldenRun& run = {});

/// Makes the actions of a program without running it; throws what binding throws.
void bind(const GoldenModel& model, program::Program program);

/// One worker with all leaves, adding them along the canonical tree: what all others are compared with.
program::Program one_rank_step(const GoldenModel& model);
program::Program one_rank_evaluation(const GoldenModel& model);

}  // namespace lockstep::train
