#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "train/faults/failpoint.h"

namespace lockstep::cli {

/// What `chaos` does to a job: the failpoints of the same names, and preempt, a stop request to mpirun.
enum class ChaosKind { kill, stop, hang, delay, nan, flip, enospc, error, preempt };
std::string_view name_of(ChaosKind kind);

/// "kill,stop"; "" for all that `config` on so many workers leaves a chance to notice. Throws ConfigError.
std::vector<ChaosKind> parse_chaos_kinds(const std::string& list, const config::RunConfig& config,
                                         int workers);

/// What can be disturbed.
struct ChaosSpace {
  struct Instructions {
    program::InstructionKind kind;
    int count;  ///< in a step
  };
  int workers = 2;                                      ///< ranks that compute; servers follow them
  std::vector<std::vector<Instructions>> instructions;  ///< by rank: those of its steps
  int64_t steps = 0;                                    ///< of the whole run
  std::vector<int64_t> saved_steps, evaluated_steps;    ///< steps that are followed by that
};

struct ChaosFault {
  ChaosKind kind = ChaosKind::kill;
  int64_t step = 1;                           ///< preempt: is requested once so many steps are complete
  std::optional<train::Failpoint> failpoint;  ///< all others
};
/// "kill@1,37,backward", "preempt after step 37".
std::string to_text(const ChaosFault& fault);

/// Rank, step and phase, from (seed, run) alone.
ChaosFault draw_fault(const ChaosSpace& space, ChaosKind kind, uint64_t seed, uint32_t run);

/// Exit codes of mpirun that show that a fault in a run of so many steps was noticed, or, with 0, survived.
std::vector<int> expected_codes(const ChaosFault& fault, const config::RunConfig& config, int64_t steps);
/// Whether a run that met such a fault, and was restarted where it ended, must end with the bits of one that
/// did not.
bool keeps_bits(const ChaosFault& fault, const config::RunConfig& config);

}  // namespace lockstep::cli
