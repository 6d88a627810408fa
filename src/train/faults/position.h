#pragma once

#include <string>

#include "control/progress.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What a rank does outside its programs.
enum class Phase {
  outside,
  start,
  prepare,
  prove,
  meet,
  restore,
  between_steps,
  locate,
  settle,
  report,
  write_text
};

/// `progress` may be null.
void enter_phase(control::Progress* progress, Phase phase);

/// The place of an entry, for a sentence that ends with "in ...": "the preparation of programs and data",
/// "evaluate instruction 3 (forward, ..., layers conv1 to relu1)". If `worker` is null, programs are known
/// only by number. Reads only what never changes once a worker is made, so any thread may call it.
std::string describe_position(const control::Progress::Entry& entry, const Worker* worker);

}  // namespace lockstep::train
