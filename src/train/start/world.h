#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "control/control_plane.h"
#include "lockstep/error.h"
#include "observe/startup_times.h"
#include "train/faults/watched_communicator.h"
#include "train/start/device_choice.h"
#include "train/start/launch_facts.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// The processes of a job, as one of them sees it: those that mpirun or srun started, or this one alone, in
/// which case MPI is never touched. Owned by main's frame; everything that
/// communicates is destroyed before finish().
class World {
 public:
  /// COLLECTIVE: MPI connects the processes. Where it does not within five minutes, a process says so and
  /// ends itself.
  World();
  ~World();
  World(const World&) = delete;
  /// COLLECTIVE, once, before anything else: connects the control plane. Throws ConfigError where the
  /// processes did not find each other, CollectiveError where they cannot be connected.
  void start();

  comm::Communicator& communicator() { return *communicator_; }
  control::ControlPlane& control() { return *control_; }
  control::Mailbox& mailbox() { return mailbox_ ? *mailbox_ : control_->mailbox(); }
  /// COLLECTIVE over `left`, the ranks that are left of this world, which they are from now on, numbered anew
  /// in this order; the control plane and what it says of ranks keep the first numbers.
  void go_on_with(const std::vector<int>& left);
  bool is_complete() const { return members_.size() == first_size_; }
  /// By rank: its first number.
  const std::vector<int>& members() const { return members_; }
  /// The limits of `options` count from now on.
  void watch(const control::WatchdogOptions& options);
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  /// Numbers of the ranks' hosts, from 0 in the order of ranks.
  const std::vector<int>& hosts() const { return hosts_; }
  /// How long this process took to get to its first training step.
  observe::StartupTimes& startup() { return startup_; }
  bool one_host() const;
  /// Where this rank may run, and how many share its host.
  LaunchFacts placement() const;

  /// COLLECTIVE: waits for the others and leaves MPI. Nothing may communicate afterwards.
  void finish();
  /// Says on stderr what has failed on this rank, and ends the whole job, so that no other rank waits for
  /// this one.
  [[noreturn]] void fail(const std::exception& error) noexcept;
  /// The first half of fail(), for whoever has to tidy up first by means that may hang: the others know, and
  /// this process is ended soon, by the watchdog if need be. Only the first call says anything.
  ExitCode tell_failure(const std::exception& error) noexcept;

 private:
  void watch_communicator();

  observe::StartupTimes startup_;
  std::optional<ExitCode> told_failure_;
  std::unique_ptr<comm::MpiEnvironment> environment_;
  std::unique_ptr<control::ControlPlane> control_;
  std::unique_ptr<comm::Communicator> communicator_;
  WatchedCommunicator* watched_ = nullptr;  // communicator_, once the control plane stands
  std::string host_;
  std::vector<int> hosts_;
  int rank_ = 0, size_ = 1;
  std::vector<int> members_;
  size_t first_size_ = 1;
  std::unique_ptr<control::Mailbox> mailbox_;  // of those that are left, where some are lost
};

/// Runs `body` as one rank of the job, and returns what the process shall exit with: what `body` returned, or
/// the code of what it threw, which is printed once, as "lockstep: error: ...". An error that all ranks throw
/// alike is printed by rank 0, and all leave in order; after any other error the job is ended, so that no
/// rank waits for this one. Signals ask to stop (train/loop/stop_request.h) from the first moment.
int run_in_world(const std::function<int(World&)>& body);

/// "lockstep: error: ..." on stderr, in one piece. Returns the exit code that belongs to `error`.
ExitCode report_error(const std::exception& error);

/// COLLECTIVE: every rank loads its config, they agree on what to compute on, and every rank prepares its
/// worker; then the ranks make sure that all of them could, and that they run the same job, and connect.
/// Throws CollectiveError on all ranks where that is not so. `options`: what else decides which collective
/// calls a rank makes, such as whether it saves checkpoints.
std::unique_ptr<Worker> start_worker(World& world, const std::function<config::RunConfig()>& load_config,
                                     const DeviceRequest& device = {},
                                     const std::vector<comm::AgreementField>& options = {},
                                     const WorkerOptions& worker_options = {});

/// Lets the watchdog name what `worker` does, as long as this lives; no longer than the worker.
class WatchedWorker {
 public:
  WatchedWorker(World& world, const Worker& worker);
  ~WatchedWorker();
  WatchedWorker(const WatchedWorker&) = delete;
  WatchedWorker& operator=(const WatchedWorker&) = delete;

 private:
  World& world_;
};

}  // namespace lockstep::train
