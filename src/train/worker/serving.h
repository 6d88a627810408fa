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

/// Where a job may lose workers in sessions and go on.
struct Company {
  control::Muster* muster = nullptr;  ///< null: a loss ends the job
  std::vector<int> members;           ///< by rank: what the muster calls it
};

struct ServingOptions {
  /// How long a rank waits for the others; absent: as long as it takes, since a watchdog looks after them.
  std::optional<std::chrono::milliseconds> timeout;
  control::Progress* progress = nullptr;  ///< may be null
  Company company;
  /// Called before each update with the optimizer step that it belongs to, from 0, and the instruction of
  /// `serve`; may be empty.
  std::function<void(int64_t step, int instruction)> before_update;
};

/// What a rank does in sessions, beside its steps: it talks with servers where it is a worker, and serves
/// where it is a server, or both, on one thread. Where a layout has no sessions there is none of it.
class Serving {
 public:
  /// COLLECTIVE. All but `world` must outlive it; `context`: of the rank's serve program.
  Serving(comm::Communicator& world, const compile::CompiledRun& compiled,
          const compile::CompiledRun::RankPrograms& programs, const run::ExecutionContext& context,
          ServingOptions options);

  /// What pulls and pushes are bound to; null on ranks that are no workers.
  run::WorkerSession* worker() { return worker_ ? &*worker_ : nullptr; }
  bool is_server() const { return server_ != nullptr; }

  struct Inputs {
    int64_t first_step = 0;  ///< optimizer steps complete
    int64_t steps = 0;       ///< to make, all workers together
    std::function<run::StepScalars(int64_t updates, int64_t applied)> constants;
    std::function<bool()> stop_requested;
  };
  void begin(const Inputs& inputs);
  /// Waits until the coordinator says whether there is a next step; without, the worker has left.
  std::optional<run::Grant> next_step();
  /// Serves until all workers have left, or are lost.
  void finish();
  /// COLLECTIVE: who is left at the end of the session, by rank, ascending.
  std::vector<int> meet();
  /// A part of what goes on beside a worker's steps, without waiting; true if there may be more of it.
  bool alongside();

  /// See ServerSession.
  bool has_lost_transfers() { return server_ && server_->has_lost_transfers(); }
  /// After an error: whom the backend reaches shall not wait.
  void abort(std::string_view reason) noexcept;

  /// Of the session that is over. REQUIRES: is_server().
  const run::SessionTotals& totals() const { return server_->totals(); }
  const run::Staleness& staleness() const { return server_->staleness(); }
  double busy_ms() const { return server_->busy_ms(); }
  comm::TransferredBytes transferred() const;
  /// Updates of the coordinator that are one optimizer step: with a bound one, otherwise as many as pushes.
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
