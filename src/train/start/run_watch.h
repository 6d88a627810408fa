#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "observe/machine/report.h"
#include "observe/phase_clock.h"
#include "observe/sinks/sink.h"
#include "run/stamp_recorder.h"
#include "train/loop/machine_watch.h"
#include "train/loop/run_output.h"
#include "train/loop/step_timeline.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// A timeline that a run is to record.
struct TimelineWish {
  std::string path;                ///< of the file; empty: none
  std::optional<StepRange> steps;  ///< see steps_to_record
  int64_t done = 0, total = 0;     ///< steps made before this run; those after its last one
};

/// What watches a run beside its loop, on every rank: the timeline of some steps, and figures of machines.
class RunWatch {
 public:
  explicit RunWatch(World& world) : world_(world) {}

  /// COLLECTIVE, before the first step. Refuses, on all ranks alike, what cannot be recorded. All arguments
  /// must outlive this. Nothing without a path.
  void record(const TimelineWish& wish, Worker& worker, run::StampRecorder& stamps,
              observe::PhaseClock& phases);
  /// COLLECTIVE, before the first step. `write`: on rank 0, for every record; from a thread. Nothing if the
  /// wishes are for none.
  void sample(const MachineWishes& wishes, const Worker& worker, int64_t step,
              std::function<void(observe::MetricsRecord)> write);

  /// COLLECTIVE if there is a timeline, except within sessions.
  void after_step(int64_t step);
  // See TrainerEvents. COLLECTIVE if there is a timeline.
  void session_begins(int64_t done, int64_t last);
  void session_ends(int64_t done);
  void granted_step(const GrantedStep& step);
  /// Some ranks are lost, and this rank's worker is about to go.
  void part();
  /// The run continues without them: this rank may have another number, and has another worker.
  void follow(Worker& worker);
  /// COLLECTIVE if there is a timeline: the last sample, and the timeline's file.
  void finish();
  /// No more samples, at once.
  void abandon_machines() noexcept;
  /// Writes what this rank has of the timeline. It may take as long as the disk.
  void abandon_timeline(const char* why) noexcept;
  /// The same for no longer than a moment: the process ends without unwinding.
  void abandon_timeline_soon(const char* why) noexcept;

  /// Of what this rank has sampled.
  std::vector<observe::MachineReport> machines() const;

 private:
  observe::MachineIdentity identity() const;

  World& world_;
  std::string host_name_;  // of figures of machines: no other host of the job has it
  std::optional<StepTimeline> timeline_;
  std::optional<MachineWatch> machine_;
};

}  // namespace lockstep::train
