#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "comm/clock_offset.h"
#include "comm/communicator.h"
#include "observe/timeline/timeline.h"
#include "plan/serving_slices.h"
#include "plan/timeline_slices.h"
#include "run/stamp_recorder.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Steps counted from 1, as metrics and reports count them; both ends are included.
struct StepRange {
  int64_t first = 1, last = 1;
  int64_t count() const { return last - first + 1; }
  bool operator==(const StepRange&) const = default;
};

/// "100:105": six steps. Throws ConfigError.
StepRange parse_step_range(std::string_view text);

/// The steps to record of a run that makes the steps after `done` up to `total`. As `asked`; without it, five
/// steps after those that warm up, or the last ones of a shorter run. Throws CollectiveError if the run does
/// not make all of the steps that are asked for, or none at all.
StepRange steps_to_record(std::optional<StepRange> asked, int64_t done, int64_t total);

/// Records some steps of all ranks and writes them to one file (observe::ChromeTraceWriter). Before the first
/// and after the last of them ranks compare their clocks. Rank 0 collects what each has recorded after the
/// last step, or when the run ends before it. If the run fails, rank 0 writes its own part with a note.
/// Workers of layouts with sessions do not step together: there, clocks are compared before and after the
/// sessions in which these steps are made.
class StepTimeline {
 public:
  /// `path`: of the file, which only rank 0 writes; it must not exist. All must outlive this. Throws
  /// ConfigError if there is such a file, IoError if its folder cannot be written.
  StepTimeline(std::string path, const std::string& host, Worker& worker, run::StampRecorder& recorder,
               comm::Communicator& world);
  ~StepTimeline();
  StepTimeline(const StepTimeline&) = delete;
  StepTimeline& operator=(const StepTimeline&) = delete;

  /// Before begin(): takes memory for these steps. Throws ConfigError if they are too many for this rank.
  void prepare(StepRange steps);
  /// COLLECTIVE: before the first step of the run, of which `done` were made before.
  void begin(int64_t done);
  /// COLLECTIVE: after each step, except of sessions, where the rank only learns that steps are made.
  void after_step(int64_t step);
  /// COLLECTIVE: a session begins that makes steps `done` + 1 to at most `last`.
  void session_begins(int64_t done, int64_t last);
  /// COLLECTIVE: the session has ended, with `done` steps made in all.
  void session_ends(int64_t done);
  /// This worker has made a step that it was granted.
  void granted_step(uint64_t iteration, Clock::time_point asked, Clock::time_point granted,
                    Clock::time_point ended);
  /// Some ranks are lost. Keeps what this rank has recorded; its worker may go.
  void part();
  /// This rank continues with another worker, in a smaller world.
  void follow(Worker& worker, comm::Communicator& world);
  /// A phase of the loop other than steps has ended.
  void phase(std::string_view name, Clock::time_point begin, Clock::time_point end);
  /// COLLECTIVE: the run ends; writes what was recorded, unless that was done.
  void finish();
  /// The run has failed: rank 0 writes what it has, unless that was done. Any thread may call it.
  void abandon(std::string_view why) noexcept;

 private:
  observe::RankTimeline own_part() const;
  /// Parts of ranks as text (observe::to_text), one after the other.
  using Take = std::function<void(std::string text)>;
  /// `ranks`: without their slices. `hand_over` passes each part on; what it throws leaves, while what cannot
  /// be written is a warning.
  void write(std::vector<observe::RankTimeline> ranks, double first, std::vector<std::string> notes,
             const std::function<void(const Take& take)>& hand_over);
  void collect(std::vector<std::string> notes);

  /// What programs' instructions are called in the file.
  struct Names {
    explicit Names(const Worker& worker)
        : step(worker.compiled(), worker.programs().step),
          serving(worker.compiled(), worker.programs().serve, step.free_row()) {}
    std::vector<observe::TimelineRow> rows() const;
    plan::TimelineSlices step;
    plan::ServingSlices serving;
  };
  void begin_recording();
  size_t stamps_of_iteration() const;
  void add_stamps(observe::RankTimeline& part) const;
  bool has_sessions() const { return worker_->serving() != nullptr; }

  const std::string path_, host_, layout_, config_hash_;
  const bool first_rank_;
  Worker* worker_;
  run::StampRecorder& recorder_;
  comm::Communicator* world_;
  std::optional<Names> names_;  // of worker_
  StepRange steps_;
  std::optional<observe::RankTimeline> kept_;  // of this rank, before others were lost
  std::atomic<bool> recording_{false};
  Clock::time_point step_began_;
  comm::ClockOffset clock_;  // when recording began
  struct Phase {
    std::string name;  // empty: a wait for a grant
    Clock::time_point begin, end;
  };
  std::vector<Phase> phases_;
  std::atomic<int64_t> last_made_{0};
  mutable std::mutex mutex_;  // guards written_, phases_ and kept_: a watchdog may abandon
  bool written_ = false;
};

}  // namespace lockstep::train
