#include "train/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "base/log.h"
#include "train/agreement.h"

namespace lockstep {
namespace {

/// Ranks reach an agreement when each has opened its data; a rank that is not there after this time is not
/// coming.
constexpr std::chrono::seconds kAgreementTimeout{300};

/// Another MPI's launcher starts processes that do not find each other: each would train alone, into one folder.
void check_launcher(int world_size) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* text = std::getenv(name); text != nullptr && std::atoi(text) != world_size)
      throw ConfigError(fmt::format("the launcher started {} processes ({}), but MPI connects {} of them: start lockstep with "
                                    "the mpirun of the Open MPI that it is linked with", text, name, world_size));
}

}  // namespace

World::World() {
  if (started_by_mpi_launcher()) {
    environment_ = make_mpi_environment();
    communicator_ = environment_->world();
  } else {
    communicator_ = make_solo_communicator();
  }
  check_launcher(communicator_->size());
  rank_ = communicator_->rank();
  size_ = communicator_->size();
  // Rank 0 speaks for the job; the others say who they are.
  if (rank_ > 0) set_log_rank(rank_, size_);
}

void World::finish() {
  communicator_.reset();
  if (environment_) environment_->finish();
}

void World::abort(ExitCode code) noexcept {
  if (environment_) environment_->abort_job(static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

ExitCode report_error(const std::exception& error) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string text = fmt::format("lockstep: error: {}\n", no_memory ? "the host has no memory left; use a smaller model or "
                                                                             "micro_batch, or more hosts" : error.what());
  // One write, so that the lines of several ranks stay whole.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  const auto* own = dynamic_cast<const Error*>(&error);
  if (no_memory) return ExitCode::unavailable;
  return own ? own->code() : ExitCode::internal;
}

int run_in_world(const std::function<int(World&)>& body) {
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>();
    std::optional<CollectiveError> collective;
    int code = 0;
    try {
      code = body(*world);
    } catch (const CollectiveError& error) {
      collective = error;
      code = static_cast<int>(world->rank() == 0 ? report_error(error) : error.code());
    }
    try {
      world->finish();
    } catch (const Error&) {
      // The others did not come: what should have been an error of all ranks was one of this rank alone.
      if (collective && world->rank() > 0) report_error(*collective);
      world->abort(collective ? collective->code() : ExitCode::hang);
    }
    return code;
  } catch (const std::exception& error) {
    const ExitCode code = report_error(error);
    if (world) world->abort(code);
    return static_cast<int>(code);
  }
}

std::unique_ptr<Worker> start_worker(Communicator& world, const std::function<RunConfig()>& load_config,
                                     const std::vector<AgreementField>& options) {
  std::unique_ptr<Worker> worker;
  std::exception_ptr failure;
  try {
    worker = std::make_unique<Worker>(load_config(),
                                      WorkerOptions{.rank = world.rank(), .world_size = world.size()});
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  agree_on_outcome(world, failure, kAgreementTimeout);
  auto fields = worker->agreement_fields();
  fields.insert(fields.end(), options.begin(), options.end());
  agree_on_fields(world, fields, kAgreementTimeout);
  worker->connect(world);
  return worker;
}

}  // namespace lockstep
