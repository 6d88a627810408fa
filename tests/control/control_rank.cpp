// One rank of a job that does nothing but be watched, for control_processes_test.py and
// scripts/measure_hostile.py:
//
//   mpirun -n 4 control_rank work SECONDS [silent_ms]     says "rank R pid P" on stdout, works, leaves
//   mpirun -n 4 control_rank crash RANK                   that rank ends by a signal after a moment
//   mpirun -n 4 control_rank fail RANK                    that rank fails with exit code 65
//   mpirun -n 3 control_rank late                         the last rank connects only when a line comes in on
//   stdin
//
// Every rank writes a crash file into $LOCKSTEP_TEST_CRASH_DIRECTORY, where that is set.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "base/host_name.h"
#include "comm/communicator.h"
#include "control/meeting_of.h"
#include "control/start.h"
#include "device/device.h"

namespace lockstep::control {
namespace {

std::atomic<bool> terminated = false;

void say(const std::string& line) {
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, line.data(), line.size());
}

void meet(comm::Communicator& world) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("meet");
  world.barrier(*stream);
  world.synchronize(*stream, deadline_in(std::chrono::seconds(60)));
}

/// Computes in steps of a few milliseconds and counts them.
void work(ControlPlane& plane, double seconds) {
  const Deadline end = deadline_in(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  for (int64_t step = 0; Clock::now() < end; ++step) {
    plane.progress().enter(Progress::kMainSlot, Activity::compute, 0, 17);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    plane.progress().set_step(step);
  }
  plane.progress().enter(Progress::kMainSlot, Activity::idle, 0, 0);
}

int run(const std::string& what, int number, int silent_ms) {
  const auto environment = comm::make_mpi_environment();
  const auto world = environment->world();
  const int rank = world->rank();
  ControlPlaneOptions options{.host = host_name(),
                              .interface = "",
                              .termination_requested = [] { return terminated.load(); },
                              .end_process = {}};
  ControlTimings timings;
  if (what == "late") {
    timings.connect = timings.collective = std::chrono::hours(1);
    if (rank == world->size() - 1)
      options.before_connect = [](const std::string& addresses) {
        say(fmt::format("rank 0 listens at {}; a line on stdin lets the last rank in\n", addresses));
        while (std::getchar() != '\n' && !std::feof(stdin)) {
        }
      };
  }
  const auto plane = start_control_plane(meeting_of(*world), options, timings);
  WatchdogOptions watch;
  if (silent_ms > 0) watch.silent_after = std::chrono::milliseconds(silent_ms);
  plane->configure(watch);
  plane->set_describer(
      [](const Progress::Entry& entry) { return fmt::format("step instruction {}", entry.instruction); });
  if (const char* folder = std::getenv("LOCKSTEP_TEST_CRASH_DIRECTORY")) plane->set_crash_directory(folder);
  plane->progress().enter(Progress::kMainSlot, Activity::compute, 0, 17);
  say(fmt::format("rank {} pid {}\n", rank, ::getpid()));
  if (what == "work") work(*plane, number);
  if (what == "crash" || what == "fail") {
    work(*plane, 0.3);
    if (rank != number) work(*plane, 60);
    if (what == "crash") std::raise(SIGKILL);
    plane->abort(ExitCode::data, "a shard is damaged");
    std::_Exit(65);
  }
  meet(*world);
  if (rank == 0) say(fmt::format("all {} ranks have met\n", world->size()));
  plane->leave();
  environment->finish();
  return 0;
}

}  // namespace
}  // namespace lockstep::control

int main(int argc, char** argv) {
  std::signal(SIGTERM, [](int) { lockstep::control::terminated = true; });
  try {
    return lockstep::control::run(argc > 1 ? argv[1] : "work", argc > 2 ? std::atoi(argv[2]) : 1,
                                  argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
