#pragma once

#include <cstdint>
#include <string>

namespace lockstep::checkpoint {

/// What happens to the run if a checkpoint cannot be written.
enum class SaveFailurePolicy { stop, go_on };

enum class ResumePolicy { never, automatic, path };

struct CheckpointOptions {
  int64_t every_steps = 0;  ///< 0: only at the end
  bool at_end = true;
  int keep = 3;            ///< complete checkpoints kept; 0: all
  bool keep_best = false;  ///< also save and keep the one with the lowest evaluation loss
  ResumePolicy resume = ResumePolicy::never;
  std::string resume_path;  ///< if resume is path
  bool allow_config_change = false;
  bool background = true;  ///< written while training continues
  SaveFailurePolicy on_failure = SaveFailurePolicy::stop;
  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace lockstep::checkpoint
