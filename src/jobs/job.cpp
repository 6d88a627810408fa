#include "jobs/job.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "base/host_name.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "doctor/launcher.h"
#include "jobs/child_process.h"
#include "jobs/workplace.h"
#include "train/start/launch_facts.h"

namespace lockstep::jobs {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kPollInterval = 5ms;
/// What is left to die on its own has this long.
constexpr auto kFarewell = 3s;

/// Processes whose environment holds `entry`. A zombie has none, and is none.
std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string name = process->path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size() ||
        pid == ::getpid())
      continue;
    std::ifstream file(process->path() / "environ", std::ios::binary);
    const std::string environment = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
    if (environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(pid);
  }
  return found;
}

/// The same, but a single look may miss a process that is just being forked or executes another program.
std::vector<pid_t> surely_processes_with(const std::string& entry) {
  constexpr int kLooks = 4;
  std::vector<pid_t> found;
  for (int look = 0; look < kLooks && found.empty(); ++look) {
    if (look > 0) std::this_thread::sleep_for(kPollInterval);
    found = processes_with(entry);
  }
  return found;
}

/// All processes of one job, which end with this object. Ranks have sessions of their own, so nothing but the
/// environment that they inherit tells whose they are. Its variable has a name of its own, so that what a job
/// starts as a job of its own belongs to both.
class JobProcesses {
 public:
  JobProcesses() {
    static std::atomic<int> count{0};
    variable_ = fmt::format("LOCKSTEP_JOB_{}_{}_{}", ::getpid(), wall_clock_us(), ++count);
  }
  ~JobProcesses() {
    if (!ended_) end(0s);
  }
  JobProcesses(const JobProcesses&) = delete;

  /// What the first process must be started with: this variable as "1".
  const std::string& variable() const { return variable_; }

  /// Ends what is still there after `patience`, and returns how much that was.
  int end(std::chrono::milliseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    const std::string entry = variable_ + "=1";
    auto left = surely_processes_with(entry);
    while (!left.empty() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kPollInterval);
      left = surely_processes_with(entry);
    }
    const int count = static_cast<int>(left.size());
    for (; !left.empty(); left = surely_processes_with(entry)) {
      for (const pid_t pid : left) ::kill(pid, SIGKILL);
      std::this_thread::sleep_for(kPollInterval);
    }
    ended_ = true;
    return count;
  }

 private:
  std::string variable_;
  bool ended_ = false;
};

void make_folder_of(const std::string& path) {
  std::error_code error;  // where it fails, opening the file says so
  if (const auto folder = fs::path(path).parent_path(); !folder.empty())
    fs::create_directories(folder, error);
}

/// Its exit code; nothing if the limit came first.
std::optional<int> wait_for(RunningChild& child, const ProcessJob& job) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const auto is_late = [&] {
    return job.limit_seconds > 0 &&
           std::chrono::duration<double>(Clock::now() - began).count() >= job.limit_seconds;
  };
  std::optional<int> code;
  while (!(code = child.poll()) && !is_late()) {
    if (job.watch) job.watch(child.pid());
    std::this_thread::sleep_for(kPollInterval);
  }
  return code;
}

}  // namespace

int64_t wall_clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> ProcessJob::command() const {
  std::vector<std::string> words = place.starter;
  // A single process, too, belongs on the first host that is named, unless what stands before takes it there.
  if (processes > 1 || (!place.mpirun_options.empty() && place.starter.empty())) {
    words.insert(words.end(), {"mpirun", "-n", std::to_string(processes)});
    words.insert(words.end(), place.mpirun_options.begin(), place.mpirun_options.end());
  }
  words.push_back(program.empty() ? own_program() : program);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::vector<std::string> TrainingCommand::arguments() const {
  std::vector<std::string> words = {command,    config, "--json", "--layout", layout::to_string(layout),
                                    "--device", device};
  if (allow_shared_gpu) words.push_back("--allow-shared-gpu");
  if (command == "train") words.push_back("--metrics-file-only");
  for (const auto& assignment : assignments) words.push_back("--set=" + assignment);
  return words;
}

JobOutcome run_to_end(const ProcessJob& job) {
  make_folder_of(job.stdout_path);
  make_folder_of(job.stderr_path);
  JobProcesses processes;
  ChildProcess child{.command = job.command(),
                     .environment = job.environment,
                     .stdout_path = job.stdout_path,
                     .stderr_path = job.stderr_path};
  child.environment.merge(mpirun_environment());
  child.environment[processes.variable()] = "1";

  JobOutcome outcome{.began_us = wall_clock_us()};
  {
    RunningChild running(child);
    outcome.code = wait_for(running, job);
    outcome.ended_us = wall_clock_us();
    const int left = processes.end(outcome.code ? kFarewell : 0s);
    if (outcome.code) outcome.leftover_processes = left;
  }
  outcome.output = read_text_file(job.stdout_path);
  outcome.error = read_text_file(job.stderr_path);
  return outcome;
}

Error job_failure(const std::string& what, const JobOutcome& outcome, const std::string& folder) {
  const int code = outcome.code.value_or(-1);
  const bool crashed =
      code == 128 + SIGABRT && doctor::letters_at_begin(host_name()) > doctor::kMostLettersOfHost;
  return Error(fmt::format("{} {}\n  {}{}\nall of its output is in {}", what,
                           outcome.code ? fmt::format("ended with exit code {}", code)
                                        : "did not end in time and was ended",
                           last_lines(outcome.error, 20),
                           crashed ? fmt::format("\nOpen MPI's mpirun crashes if the host's name begins with "
                                                 "more than {} letters and hyphens: give it a shorter one",
                                                 doctor::kMostLettersOfHost)
                                   : "",
                           folder),
               code > 0 && code < 128 ? static_cast<ExitCode>(code) : ExitCode::internal);
}

void check_can_start_jobs(const std::string& command, int processes) {
  if (comm::started_by_mpi_launcher())
    throw ConfigError(fmt::format("{} starts mpirun itself; run it without", command));
  train::check_launcher(train::launch_facts(1, 1));
  if (processes > 1 && !on_path("mpirun"))
    throw DeviceError(
        fmt::format("{} needs mpirun for {} processes, but it is not on PATH; install Open MPI "
                    "(scripts/install_dependencies.sh)",
                    command, processes));
}

}  // namespace lockstep::jobs
