#include "train/start/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "base/file_size_limit.h"
#include "base/host_name.h"
#include "base/index.h"
#include "base/log.h"
#include "base/mapped_memory.h"
#include "comm/agreement.h"
#include "comm/gather_texts.h"
#include "train/faults/crash_handler.h"
#include "train/faults/position.h"
#include "train/loop/stop_request.h"
#include "train/start/launch_facts.h"
#include "train/start/long_work.h"

namespace lockstep::train {
namespace {

/// Ranks reach an agreement when each has opened its data; a rank that is not there after this time is not
/// coming.
constexpr std::chrono::seconds kAgreementTimeout{300};

constexpr std::chrono::seconds kStartTimeout{300};

/// For so long a proof goes on before anybody is told why nothing happens.
constexpr std::chrono::seconds kWithoutAWord{10};

/// For a launcher to ask, on a host whose cores are busy.
constexpr std::chrono::seconds kLauncherPatience{20};

control::Meeting meeting_of(comm::Communicator& world) {
  return {.rank = world.rank(),
          .size = world.size(),
          .exchange = [&world](const std::string& own, std::chrono::milliseconds timeout) {
            return comm::gather_texts(world, own, timeout);
          }};
}

/// Once all work is done, the others are as good as here.
constexpr std::chrono::seconds kFinishTimeout{60};

std::string variable_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int control_port() {
  const std::string text = variable_or_empty("LOCKSTEP_CONTROL_PORT");
  if (text.empty()) return 0;
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port < 1 || port > 65535)
    throw ConfigError(fmt::format(
        "LOCKSTEP_CONTROL_PORT is '{}'; expected a port from 1 to 65535, or nothing for any free one", text));
  return port;
}

/// In one piece.
void say(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// For launchers, in the words of control/failure_report.h: an mpirun that goes on after losses passes on no
/// exit code, and may wait for the lost ones without end.
void report_end(int code, bool is_complete) {
  say(fmt::format("lockstep: the job ends with exit code {} (done{})\n", code,
                  is_complete ? "" : ", without those that were lost"));
}

/// Ends the process if MPI does not start: a rank that never comes would keep the others waiting in a call
/// without a deadline.
class StartTimer {
 public:
  StartTimer()
      : thread_([this] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, kStartTimeout, [this] { return started_; })) return;
          report_error(CommError(
              fmt::format("MPI has not connected this process with the others within {} s: look for a "
                          "process that did not start, a host that hangs, or a program that is not lockstep",
                          kStartTimeout.count())));
          ::_exit(static_cast<int>(ExitCode::hang));
        }) {}
  ~StartTimer() {
    {
      std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;
};

/// Takes back what was done to signals: a program that embeds lockstep has handlers of its own.
class SignalScope {
 public:
  SignalScope() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &before_[i]);
    // Whoever reads the messages may go: a training goes on, and is saved.
    ::signal(SIGPIPE, SIG_IGN);
    survive_file_size_limit();
  }
  ~SignalScope() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
    forget_later_handlers();
  }

 private:
  static constexpr std::array kSignals{SIGUSR1, SIGTERM, SIGINT,  SIGHUP,  SIGSEGV, SIGBUS,
                                       SIGILL,  SIGFPE,  SIGABRT, SIGPIPE, SIGXFSZ};
  std::array<struct sigaction, kSignals.size()> before_;
};

/// Whether the ranks can share memory; if they cannot, a container's /dev/shm is usually too small, and
/// rank 0 says so.
bool can_share_memory(World& world) {
  if (world.size() == 1 || !world.one_host()) return false;
  try {
    comm::make_shared_memory_communicator(world.communicator());
    return true;
  } catch (const CommError& error) {
    if (world.rank() == 0)
      log_warning(fmt::format("gradients go through MPI, not through shared memory: {}", error.what()));
    return false;
  }
}

/// COLLECTIVE. With aggregate=host and no servers, workers of one host sum in memory that they share. Throws
/// ConfigError on those of a host that cannot.
void require_memory_of_hosts(World& world, const config::RunConfig& config) {
  const layout::Layout& layout = config.parallel.layout;
  if (layout.aggregate == layout::Aggregation::none || layout.sync == layout::SyncMethod::parameter_server ||
      world.one_host())
    return;
  const auto own = world.communicator().split(nth(world.hosts(), world.rank()), world.rank());
  if (own->size() == 1) return;
  try {
    comm::make_shared_memory_communicator(*own);
  } catch (const CommError& error) {
    throw ConfigError(
        fmt::format("parallel.aggregate is HOST, but the {} workers of host {} cannot share memory: {}; let "
                    "them share one "
                    "/dev/shm, or remove aggregate",
                    own->size(), world.host(), error.what()));
  }
}

}  // namespace

World::World() : startup_(observe::process_start()), host_(host_name()) {
  if (comm::started_by_mpi_launcher()) {
    const StartTimer timer;
    environment_ = comm::make_mpi_environment();
    communicator_ = environment_->world();
  } else {
    communicator_ = comm::make_solo_communicator();
  }
  rank_ = communicator_->rank();
  size_ = communicator_->size();
  members_.resize(static_cast<size_t>(size_));
  std::iota(members_.begin(), members_.end(), 0);
  first_size_ = members_.size();
  // Rank 0 speaks for the job; the others say who they are.
  if (rank_ > 0) set_log_rank(rank_, size_);
  set_crash_rank(rank_);
}

World::~World() = default;

void World::start() {
  check_launcher(launch_facts(size_, 1));
  hosts_ = hosts_of_ranks(*communicator_, host_);
  const int port = control_port();
  try {
    control_ = control::start_control_plane(meeting_of(*communicator_),
                                            {.host = host_,
                                             .interface = variable_or_empty("LOCKSTEP_CONTROL_INTERFACE"),
                                             .port = port,
                                             .termination_requested = termination_requested,
                                             .end_process = [this](int code) { leave_at_once(code); },
                                             .end_lost = end_lost_process});
  } catch (const CommError& error) {
    // These two reach all ranks alike; anything else is this rank's own, which it has to tell by itself.
    if (error.code() != ExitCode::usage && error.code() != ExitCode::unavailable) throw;
    throw comm::CollectiveError(error.what(), error.code());
  }
  control_->set_describer(
      [](const control::Progress::Entry& entry) { return describe_position(entry, nullptr); });
  enter_phase(&control_->progress(), Phase::outside);
  watch_communicator();
  // From here on a loss is told of; before, such an mpirun says nothing.
  if (rank_ == 0 && goes_on_after_losses(launch())) say("lockstep: all processes are connected\n");
  startup_.end(observe::StartupPart::launch);
}

void World::set_farewell(std::function<void()> farewell) {
  const std::lock_guard lock(farewell_mutex_);
  farewell_ = std::move(farewell);
}

void World::leave_at_once(int code) noexcept {
  {
    const std::lock_guard lock(farewell_mutex_);
    if (farewell_) farewell_();
  }
  ::_exit(code);
}

void World::watch_communicator() {
  auto watched = std::make_unique<WatchedCommunicator>(std::move(communicator_), control_->progress());
  watched_ = watched.get();
  communicator_ = std::move(watched);
}

void World::go_on_with(const std::vector<int>& left) {
  communicator_ = communicator_->regroup(left);
  watch_communicator();
  std::vector<int> members, hosts;
  for (const int rank : left) {
    members.push_back(nth(members_, rank));
    hosts.push_back(nth(hosts_, rank));
  }
  members_ = std::move(members);
  hosts_ = std::move(hosts);
  rank_ = communicator_->rank();
  size_ = communicator_->size();
  mailbox_ = control::make_mailbox_among(control_->mailbox(), members_);
}

void World::watch(const control::WatchdogOptions& options) {
  control_->configure(options);
  watched_->set_watched(options.enabled);
}

bool World::one_host() const {
  return std::ranges::all_of(hosts_, [this](int host) { return host == hosts_.front(); });
}

LaunchFacts World::launch() const {
  return launch_facts(size_, static_cast<int>(std::ranges::count(hosts_, nth(hosts_, rank_))));
}

void World::finish() {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("finish");
  communicator_->barrier(*stream);
  communicator_->synchronize(*stream, deadline_in(kFinishTimeout));
  communicator_.reset();
  // MPI_Finalize is nothing that could be given a deadline: from here on the watchdog counts.
  if (control_) control_->leave();
  // MPI_Finalize would wait for the lost ones: those that are left end without.
  if (environment_ && is_complete()) environment_->finish();
  control_.reset();
}

ExitCode World::tell_failure(const std::exception& error) noexcept {
  if (!told_failure_) {
    told_failure_ = report_error(error);
    if (control_) control_->abort(*told_failure_, error.what());
  }
  return *told_failure_;
}

void World::fail(const std::exception& error) noexcept {
  const ExitCode code = tell_failure(error);
  if (!control_ && goes_on_after_losses(launch())) report_end(static_cast<int>(code), /*is_complete=*/true);
  if (!control_ && environment_) environment_->abort_job(static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

ExitCode report_error(const std::exception& error) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string text =
      fmt::format("lockstep: error: {}\n", no_memory ? "the host has no memory left; use a smaller model or "
                                                       "micro_batch, or more hosts"
                                                     : printable(error.what()));
  // One write, so that the lines of several ranks stay whole.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  const auto* own = dynamic_cast<const Error*>(&error);
  if (no_memory) return ExitCode::unavailable;
  return own ? own->code() : ExitCode::internal;
}

int run_in_world(const std::function<int(World&)>& body) {
  const SignalScope signals;
  install_crash_handler();
  // Before MPI starts, which takes a while: a stop request that comes then must not end the process.
  // lockstep-run may have got the same SIGTERM as this rank, and asks all ranks to stop once it has its turn.
  const bool will_ask = !variable_or_empty("LOCKSTEP_LAUNCHER_ASKS").empty();
  install_stop_request(/*alone=*/!comm::started_by_mpi_launcher(),
                       will_ask ? kLauncherPatience : std::chrono::seconds{0});
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>();
    std::optional<comm::CollectiveError> collective;
    int code = 0;
    try {
      world->start();
      code = body(*world);
    } catch (const comm::CollectiveError& error) {
      collective = error;
      code = static_cast<int>(world->rank() == 0 ? report_error(error) : error.code());
    }
    try {
      world->finish();
      if (world->rank() == 0 && goes_on_after_losses(world->launch())) report_end(code, world->is_complete());
    } catch (const Error& error) {
      // The others did not come: what should have been an error of all ranks was one of this rank alone.
      if (collective && world->rank() > 0) world->fail(*collective);
      world->fail(error);
    }
    return code;
  } catch (const std::exception& error) {
    if (world) world->fail(error);
    return static_cast<int>(report_error(error));
  }
}

std::unique_ptr<Worker> start_worker(World& world, const std::function<config::RunConfig()>& load_config,
                                     const DeviceRequest& device,
                                     const std::vector<comm::AgreementField>& options,
                                     const WorkerOptions& worker_options) {
  // A process may train several times; the others begin here.
  if (world.startup().complete()) world.startup() = observe::StartupTimes(Clock::now());
  comm::Communicator& communicator = world.communicator();
  control::Progress* progress = &world.control().progress();
  enter_phase(progress, Phase::prepare);
  const bool shared_memory = can_share_memory(world);
  world.startup().end(observe::StartupPart::communicators);
  // What fails on any rank fails on all. The others wait for rank 0's part as long as that gets on.
  LongWork part(communicator, {.patience = kAgreementTimeout});
  const auto on_all_ranks = [&](const std::function<void()>& action) {
    std::exception_ptr failure;
    try {
      action();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    part.done();
    comm::agree_on_outcome(communicator, failure, kAgreementTimeout);
  };
  config::RunConfig loaded;
  int computing_ranks = world.size();
  on_all_ranks([&] {
    loaded = load_config();
    if (!loaded.parallel.servers_on_gpus)
      computing_ranks = layout::resolve(loaded.parallel.layout, world.size()).workers();
    world.watch(loaded.watchdog);
  });
  if (world.rank() < computing_ranks) device::set_gpu_environment(world.size() > 1);
  world.startup().end(observe::StartupPart::config);
  const DeviceChoice choice =
      agree_on_device(communicator, device, device::probe_gpus, world.hosts(), world.host(), computing_ranks,
                      loaded.parallel.reduction != layout::Reduction::fast);
  world.startup().end(observe::StartupPart::device);
  std::unique_ptr<Worker> worker;
  on_all_ranks([&] {
    WorkerOptions own = worker_options;
    own.rank = world.rank();
    own.world_size = world.size();
    own.shared_memory = shared_memory;
    own.hosts = world.hosts();
    own.device = choice.kind;
    own.gpu_ordinal = choice.ordinal;
    own.reading_threads = idle_threads(world.launch());
    if (loaded.watchdog.enabled) {
      own.progress = progress;
      if (world.size() > 1 && goes_on_after_losses(world.launch()))
        own.company = {&world.control().muster(), world.members()};
    }
    // One process alone has nobody to tell, and whoever called it may go on after an error.
    if (world.size() > 1)
      own.failed = [&world](const std::exception_ptr& error) {
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& failure) {
          world.tell_failure(failure);
        }
      };
    own.startup = &world.startup();
    own.proof_gets_on = [&part, &world, began = Clock::now(), told = false]() mutable {
      if (!told && Clock::now() - began > kWithoutAWord && world.is_complete()) {
        log_info(
            fmt::format("proves the programs of all {} processes before the first step; more processes "
                        "and smaller buckets take longer",
                        world.size()));
        told = true;
      }
      part.gets_on();
    };
    worker = std::make_unique<Worker>(loaded, own);
  });
  auto fields = worker->agreement_fields();
  fields.insert(fields.end(), options.begin(), options.end());
  comm::agree_on_fields(communicator, fields, kAgreementTimeout);
  on_all_ranks([&] { require_memory_of_hosts(world, worker->config()); });
  world.startup().end(observe::StartupPart::agreement);
  worker->connect(communicator);
  const auto& config = worker->config();
  if (world.rank() == 0 && world.is_complete())
    for (const auto& warning :
         launch_warnings(world.launch(), config.parallel.intra_op_threads + config.data.prefetch_threads))
      log_warning(warning);
  return worker;
}

WatchedWorker::WatchedWorker(World& world, const Worker& worker) : world_(world) {
  world_.control().set_describer(
      [&worker](const control::Progress::Entry& entry) { return describe_position(entry, &worker); });
}

WatchedWorker::~WatchedWorker() {
  world_.control().set_describer(
      [](const control::Progress::Entry& entry) { return describe_position(entry, nullptr); });
}

}  // namespace lockstep::train
