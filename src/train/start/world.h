#pragma once

#include <functional>
#include <memory>
#include <mutex>
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

/// The processes of a job: those that mpirun or srun started, or only this one; then MPI is never used. Owned
/// by main's frame. Everything that communicates is destroyed before finish().
class World {
 public:
  /// COLLECTIVE: MPI connects the processes. If it has not done so within five minutes, a process says so and
  /// exits.
  World();
  ~World();
  World(const World&) = delete;
  /// COLLECTIVE, once, before anything else: connects the control plane. Throws ConfigError if the processes
  /// did not find each other, CollectiveError if they cannot be connected.
  void start();

  comm::Communicator& communicator() { return *communicator_; }
  control::ControlPlane& control() { return *control_; }
  control::Mailbox& mailbox() { return mailbox_ ? *mailbox_ : control_->mailbox(); }
  /// COLLECTIVE over `left`, the remaining ranks of this world. From now on they are the world, numbered anew
  /// in this order. The control plane and its messages keep the first numbers.
  void go_on_with(const std::vector<int>& left);
  bool is_complete() const { return members_.size() == first_size_; }
  /// The first number of each rank.
  const std::vector<int>& members() const { return members_; }
  /// The limits of `options` apply from now on.
  void watch(const control::WatchdogOptions& options);
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  /// Numbers of the ranks' hosts, from 0 in the order of ranks.
  const std::vector<int>& hosts() const { return hosts_; }
  /// How long this process took until its first training step.
  observe::StartupTimes& startup() { return startup_; }
  bool one_host() const;
  /// Where this rank may run, and how many share its host.
  LaunchFacts launch() const;

  /// What the watchdog does on this rank before it ends the process: it must neither wait for long nor for
  /// the training thread. Empty: nothing. Once this returns, the one before is not running any more.
  void set_farewell(std::function<void()> farewell);

  /// COLLECTIVE: waits for the other ranks and leaves MPI. Nothing may communicate afterwards.
  void finish();
  /// Prints what has failed on this rank, and ends the whole job, so that no other rank waits for this one.
  [[noreturn]] void fail(const std::exception& error) noexcept;
  /// The first half of fail(), for callers whose clean-up may hang: the other ranks are told, and this
  /// process is ended soon, by the watchdog if necessary. Only the first call prints anything.
  ExitCode tell_failure(const std::exception& error) noexcept;

 private:
  void watch_communicator();
  [[noreturn]] void leave_at_once(int code) noexcept;

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
  std::mutex farewell_mutex_;
  std::function<void()> farewell_;
  std::unique_ptr<control::Mailbox> mailbox_;  // of those that are left, if some are lost
};

/// Runs `body` as one rank of the job. Returns the exit code of the process: what `body` returned, or the
/// code of the error that it threw, which is printed once as "lockstep: error: ...". If all ranks throw the
/// same error, rank 0 prints it, and all leave in order. After any other error the job is ended, so that no
/// rank waits for this one. From the beginning, signals ask to stop (train/loop/stop_request.h).
int run_in_world(const std::function<int(World&)>& body);

/// Prints "lockstep: error: ..." to stderr, in one piece. Returns the exit code of `error`.
ExitCode report_error(const std::exception& error);

/// COLLECTIVE: every rank loads its config, all agree on devices, and every rank prepares its worker. Then
/// the ranks check that all have succeeded and run the same job, and connect. Otherwise all ranks throw a
/// CollectiveError. `options`: whatever else decides which collective calls a rank makes, such as whether it
/// saves checkpoints.
std::unique_ptr<Worker> start_worker(World& world, const std::function<config::RunConfig()>& load_config,
                                     const DeviceRequest& device = {},
                                     const std::vector<comm::AgreementField>& options = {},
                                     const WorkerOptions& worker_options = {});

/// Lets the watchdog name what `worker` does while this object lives. `worker` must outlive it.
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
