#include "cli/chaos/chaos_job.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/shell_text.h"
#include "base/text.h"
#include "observe/metrics_reader.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

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

/// The job's command, writing to `run_directory`.
jobs::ProcessJob process_job(const ChaosJob& job, const std::string& run_directory,
                             const std::vector<std::string>& more) {
  jobs::ProcessJob process{.processes = job.processes, .arguments = job.arguments};
  process.arguments.push_back("--out=" + run_directory);
  process.arguments.insert(process.arguments.end(), more.begin(), more.end());
  return process;
}

}  // namespace

std::string ChaosJob::command_line(const std::vector<std::string>& more) const {
  return shell_line(process_job(*this, folder + "/again", more).command());
}

StartOutcome start_job(const ChaosJob& job, int start, const StartOptions& options) {
  jobs::ProcessJob process = process_job(job, job.run_directory(), options.more);
  process.environment["LOCKSTEP_FAILPOINT_LOG"] = job.failpoint_log();
  process.stdout_path = fmt::format("{}/stdout-{}.txt", job.folder, start);
  process.stderr_path = fmt::format("{}/stderr-{}.txt", job.folder, start);
  process.limit_seconds = job.limit_seconds;

  StartOutcome outcome;
  const auto is_beyond = [&](int64_t step) { return last_step(job.run_directory()) > step; };
  process.watch = [&](pid_t mpirun) {
    if (options.preempt_at && !outcome.preempted_us && is_beyond(*options.preempt_at - 1)) {
      outcome.preempted_us = jobs::wall_clock_us();
      ::kill(mpirun, SIGUSR1);
    }
    if (options.await_step && !outcome.awaited_us && is_beyond(*options.await_step))
      outcome.awaited_us = jobs::wall_clock_us();
  };
  static_cast<jobs::JobOutcome&>(outcome) = jobs::run_to_end(process);
  if (options.await_step && !outcome.awaited_us && is_beyond(*options.await_step))
    outcome.awaited_us = outcome.ended_us;
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
  for (const auto& row : observe::read_metrics(path))
    for (const char* field : {"loss", "grad_norm", "accuracy", "eval_loss", "eval_accuracy"})
      if (row.has(field)) values[fmt::format("{:012} {}", row.step(), field)] = row.number(field);
  return values;
}

std::optional<int64_t> failpoint_time(const ChaosJob& job) {
  const std::string text = read_if_there(job.failpoint_log());
  if (text.empty()) return std::nullopt;
  return std::atoll(text.c_str());
}

}  // namespace lockstep::cli
