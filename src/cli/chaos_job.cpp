#include "cli/chaos_job.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.h"
#include "cli/child_process.h"
#include "observe/metrics_reader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kMarker = "LOCKSTEP_CHAOS_JOB";
constexpr auto kPollInterval = 5ms;
/// What mpirun leaves to die on its own has this long.
constexpr auto kFarewell = 3s;

int64_t wall_clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

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

/// Ends what is still there of a job, and returns how much that was.
int end_leftovers(const std::string& marker, bool wait) {
  const auto until = std::chrono::steady_clock::now() + (wait ? kFarewell : 0s);
  auto left = processes_with(marker);
  while (!left.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kPollInterval);
    left = processes_with(marker);
  }
  const int count = static_cast<int>(left.size());
  for (; !left.empty(); left = processes_with(marker)) {
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(kPollInterval);
  }
  return count;
}

std::string read_if_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) ? read_text_file(path) : "";
}

/// "resumed after step 20 from ..." -> 20
int64_t resumed_step_of(const std::string& text) {
  constexpr std::string_view kWords = "resumed after step ";
  const size_t at = text.find(kWords);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + kWords.size());
}

}  // namespace

std::string ChaosJob::stderr_path(int start) const { return fmt::format("{}/stderr-{}.txt", folder, start); }

std::string ChaosJob::command_line(const std::vector<std::string>& more) const {
  std::string line;
  for (const auto& word : command) line += shell_word(word) + " ";
  line += shell_word("--out=" + folder + "/again");
  for (const auto& word : more) line += " " + shell_word(word);
  return line;
}

std::string shell_word(std::string_view word) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("%+,-./:=@_").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

StartOutcome start_job(const ChaosJob& job, int start, const StartOptions& options) {
  fs::create_directories(job.folder);
  const std::string marker = fmt::format("{}-{}-{}", ::getpid(), start, job.folder);
  ChildProcess child{
      .command = job.command, .environment = mpirun_environment(), .stdout_path = {}, .stderr_path = {}};
  child.command.push_back("--out=" + job.run_directory());
  child.command.insert(child.command.end(), options.more.begin(), options.more.end());
  child.environment[kMarker] = marker;
  child.environment["LOCKSTEP_FAILPOINT_LOG"] = job.failpoint_log();
  child.stdout_path = fmt::format("{}/stdout-{}.txt", job.folder, start);
  child.stderr_path = job.stderr_path(start);

  StartOutcome outcome{.began_us = wall_clock_us()};
  RunningChild running(child);
  const auto limit = outcome.began_us + static_cast<int64_t>(1e6 * job.limit_seconds);
  while (!(outcome.code = running.poll()) && wall_clock_us() < limit) {
    if (options.preempt_at && !outcome.preempted_us &&
        last_step(job.run_directory()) >= *options.preempt_at) {
      outcome.preempted_us = wall_clock_us();
      ::kill(running.pid(), SIGUSR1);
    }
    if (options.await_step && !outcome.awaited_us && last_step(job.run_directory()) > *options.await_step)
      outcome.awaited_us = wall_clock_us();
    std::this_thread::sleep_for(kPollInterval);
  }
  outcome.ended_us = wall_clock_us();
  const int left = end_leftovers(std::string(kMarker) + "=" + marker, /*wait=*/outcome.code.has_value());
  if (outcome.code) outcome.leftover_processes = left;
  running.wait();
  if (options.await_step && !outcome.awaited_us && last_step(job.run_directory()) > *options.await_step)
    outcome.awaited_us = outcome.ended_us;
  outcome.output = read_text_file(child.stdout_path);
  outcome.error = read_text_file(child.stderr_path);
  outcome.resumed_step = resumed_step_of(outcome.error);
  return outcome;
}

int64_t last_step(const std::string& run_directory) {
  // Only the end of the file is read: this is asked many times a second.
  constexpr std::streamoff kEnough = 8192;
  std::ifstream file(run_directory + "/metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!file) return 0;
  const std::streamoff size = file.tellg(), begin = std::max(std::streamoff{0}, size - kEnough);
  file.seekg(begin);
  std::string text(std::istreambuf_iterator<char>(file), {});
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0: no complete line
  const auto lines = split(text, '\n');
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto json = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step") && json.contains("loss"))
      return json["step"].get<int64_t>();
  }
  return 0;
}

std::map<std::string, double> recorded_values(const std::string& run_directory) {
  std::map<std::string, double> values;
  std::error_code error;
  const std::string path = run_directory + "/metrics.jsonl";
  if (!fs::exists(path, error)) return values;
  for (const auto& row : read_metrics(path))
    for (const char* field : {"loss", "grad_norm", "accuracy", "eval_loss", "eval_accuracy"})
      if (row.has(field)) values[fmt::format("{:012} {}", row.step(), field)] = row.number(field);
  return values;
}

std::optional<int64_t> failpoint_time(const ChaosJob& job) {
  const std::string text = read_if_there(job.failpoint_log());
  if (text.empty()) return std::nullopt;
  return std::atoll(text.c_str());
}

}  // namespace lockstep
