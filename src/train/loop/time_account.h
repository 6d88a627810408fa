#pragma once

#include <map>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "observe/explanation.h"
#include "observe/latest_file.h"
#include "observe/phase_clock.h"
#include "observe/step_times.h"
#include "plan/speed_of_light.h"
#include "train/loop/trainer.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Accounts, on every rank, for the time of a run: its phases, and what its executor knows of steps.
class TimeAccount {
 public:
  /// Both must outlive it.
  TimeAccount(Worker& worker, const observe::PhaseClock& phases);

  /// Call it before the worker is destroyed and this rank continues with another worker (follow).
  void part();
  void follow(Worker& worker);
  /// Call it after each step.
  void add(const StepRecord& record);

  /// The share of the speed of light that this rank's last step reached, if its machine's speed is known.
  std::optional<double> speed_of_light(const StepRecord& record) const;
  /// This rank alone, up to now.
  observe::Explanation so_far() const;
  /// COLLECTIVE: of all ranks.
  observe::Explanation explain(comm::Communicator& world) const;

 private:
  /// Sums over workers that are no more.
  struct Former {
    std::map<std::string, double> computing_ms;
    double waited_ms = 0, stage_wait_ms = 0, handling_ms = 0, load_ms = 0;
    data::StageTimes preparing_ms{};
    // Of devices whose lanes are streams: of the steps that were sampled, together.
    std::map<std::string, double> sampled_ms;
    int64_t sampled_steps = 0;
  };
  Former totals() const;
  void add(const run::WorkTimes& work, Former& totals) const;
  void add(const run::SampledTimes& sampled, Former& totals) const;
  void tell_sample(const Former& totals, observe::RankTime& time) const;
  observe::RankTime own() const;
  bool is_between_stages(const program::Instruction& instruction) const;

  Worker* worker_;
  const observe::PhaseClock& phases_;
  Former former_;
  double data_wait_ms_ = 0, exposed_ms_ = 0, histogram_ms_ = 0;  // of all steps
  int64_t step_ = 0, steps_ = 0;                                 // the last one; how many
  observe::StepTimes times_;
  std::optional<plan::MachineSpeed> speed_;  // of what this rank computes on
  plan::StepWork work_;                      // if that is known
};

}  // namespace lockstep::train
