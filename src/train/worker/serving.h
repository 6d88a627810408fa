#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compile/compiled_run.h"
#include "control/muster.h"
#include "control/progress.h"
#include "run/patience.h"
#include "run/serve/server_session.h"
#include "run/serve/worker_session.h"

namespace lockstep::train {

/// For jobs that may lose workers in sessions and continue.
struct Company {
  control::Muster* muster = nullptr;  ///< null: a loss ends the job
  std::vector<int> members;           ///< by rank: what the muster calls it
};

struct ServingOptions {
  /// How long a rank waits for the others; absent: without limit, because a watchdog observes them.
  std::optional<std::chrono::milliseconds> timeout;
  control::Progress* progress = nullptr;  ///< may be null
  Company company;
  run::StampRecorder* recorder = nullptr;  ///< of what a server does; may be null
  /// Called before each update with the optimizer step that it belongs to, from 0, and the instruction of
  /// `serve`; may be empty.
  std::function<void(int64_t step, int instruction)> before_update;
};

/// A rank's part in sessions, beside its steps: a worker communicates with servers, a server serves, a
/// colocated rank does both, on one thread. Layouts without sessions do not use it.
class Serving {
 public:
  /// COLLECTIVE. All but `world` must outlive it; `context`: of the rank's serve program.
  Serving(comm::Communicator& world, const compile::CompiledRun& compiled,
          const compile::CompiledRun::RankPrograms& programs, const run::ExecutionContext& context,
          ServingOptions options);

  /// The other end of pulls and pushes; null on ranks that are no workers.
  run::WorkerSession* worker() { return worker_ ? &*worker_ : nullptr; }
  bool is_server() const { return server_ != nullptr; }

  struct Inputs {
    int64_t first_step = 0;  ///< optimizer steps complete
    int64_t steps = 0;       ///< to make, all workers together
    std::function<run::StepScalars(int64_t updates, int64_t applied)> constants;
    std::function<bool()> stop_requested;
  };
  void begin(const Inputs& inputs);
  /// Waits until the coordinator says whether there is a next step. If there is none, the worker has left.
  std::optional<run::Grant> next_step();
  /// Serves until all workers have left, or are lost.
  void finish();
  /// COLLECTIVE: the ranks that are left at the end of the session, ascending.
  std::vector<int> meet();
  /// A part of what goes on beside a worker's steps, without waiting; true if there may be more of it.
  bool alongside();

  /// See ServerSession.
  bool has_lost_transfers() { return server_ && server_->has_lost_transfers(); }
  /// After an error: releases those waiting ranks that the backend can reach.
  void abort(std::string_view reason) noexcept;

  /// Totals of the session that is over. REQUIRES: is_server().
  const run::SessionTotals& totals() const { return server_->totals(); }
  const run::Staleness& staleness() const { return server_->staleness(); }
  double busy_ms() const { return server_->busy_ms(); }
  comm::TransferredBytes transferred() const;
  /// Updates of the coordinator per optimizer step: one with a bound, otherwise as many as pushes.
  bool has_bound() const { return terms_.bound.has_value(); }
  int64_t updates_per_step() const { return terms_.bound ? 1 : terms_.pushes_per_step(); }

 private:
  void rest(bool moved);
  void enter_section();
  void hear_of_losses();
  void report(control::Activity activity) const;

  ServingOptions options_;
  bool has_replica_;
  int first_pull_ = 0, first_serve_ = 0;  // instructions
  program::SessionTerms terms_;
  int rank_;
  std::unique_ptr<comm::MessagePort> to_servers_, to_workers_;
  std::optional<run::WorkerSession> worker_;
  std::unique_ptr<run::ServerSession> server_;
  layout::RankRange servers_;
  run::Patience patience_;
  int losses_heard_ = 0;  // of all that the muster tells of
};

}  // namespace lockstep::train
