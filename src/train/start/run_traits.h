#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "observe/advice.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What advice needs to know of a run besides its worker.
struct RunCircumstances {
  std::vector<std::string> config_words;  ///< that name the config in a command; none: a program's own
  bool one_host = true;
  int64_t saves = 0;
  std::optional<observe::FasterLayout> faster_layout = {};
  bool goes_on = false;                ///< the run waits meanwhile: no other plans are computed
  std::function<void()> gets_on = {};  ///< is called before each plan is compiled; may be empty
};

/// What rules of advice look at besides the report. `worker` must outlive the result, which computes plans
/// only for rules that apply.
observe::RunTraits run_traits(const Worker& worker, const RunCircumstances& circumstances);

}  // namespace lockstep::train
