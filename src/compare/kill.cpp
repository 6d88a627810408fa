#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "compare/sweep.h"
#include "jobs/job.h"
#include "lockstep/error.h"

namespace lockstep::compare {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMostStarts = 3, kCheckpoints = 5;

double seconds_of(const jobs::JobOutcome& outcome) {
  return 1e-6 * static_cast<double>(outcome.ended_us - outcome.began_us);
}

/// Whether a worker was lost: with it the job, or it alone.
bool has_lost(const jobs::JobOutcome& outcome) {
  const Json report = Json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  return outcome.code != 0 || (report.is_object() && report.value("lost_workers", int64_t{0}) > 0);
}

/// Where others go on without a worker, mpirun may end with the code of the one that was killed.
bool is_complete(const jobs::JobOutcome& outcome, int64_t steps) {
  const Json report = Json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  return report.is_object() && report.value("steps", int64_t{0}) >= steps;
}

}  // namespace

/// A start of a training that saves now and then, and goes on with what is saved.
jobs::JobOutcome CompareSweep::start_saving(const CompareRow& row, const std::string& folder, int number,
                                            const std::vector<std::string>& options) const {
  jobs::TrainingCommand training = command(row, false);
  training.assignments.push_back(
      fmt::format("checkpoint.every_steps={}", std::max<int64_t>(1, arguments_.steps / kCheckpoints)));
  if (row.layout.mode == layout::ServerMode::asynchronous)
    // Without it mpirun ends all if it sees one end.
    training.place.mpirun_options.emplace_back("--enable-recovery");
  jobs::ProcessJob job{.processes = row.layout.world_size(),
                       .arguments = training.arguments(),
                       .place = training.place,
                       .stdout_path = fmt::format("{}/result-{}.json", folder, number),
                       .stderr_path = fmt::format("{}/stderr-{}.txt", folder, number),
                       .watch = [](pid_t) { leave_if_asked(); }};
  job.arguments.insert(job.arguments.end(), {"--quiet", "--out", folder + "/run", "--resume", "auto",
                                             "--stop-after", fmt::to_string(arguments_.steps)});
  job.arguments.insert(job.arguments.end(), options.begin(), options.end());
  return jobs::run_to_end(job);
}

/// What a job takes in which a worker is killed in the middle, beside one that nothing happens to.
CompareKill CompareSweep::run_kill(const CompareRow& row, const std::string& folder) {
  use_link(row.link);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  CompareKill kill;
  const std::string undisturbed = folder + "/undisturbed", killed = folder + "/killed";
  const jobs::JobOutcome whole = start_saving(row, undisturbed, 1, {});
  if (!is_complete(whole, arguments_.steps)) throw jobs::job_failure("training", whole, undisturbed);
  kill.undisturbed_seconds = seconds_of(whole);
  while (true) {
    const std::vector<std::string> fault = {
        "--failpoint", fmt::format("kill@{},{}", arguments_.kill_rank, arguments_.steps / 2 + 1)};
    const jobs::JobOutcome part =
        start_saving(row, killed, kill.starts + 1, kill.starts == 0 ? fault : std::vector<std::string>{});
    ++kill.starts;
    kill.seconds += seconds_of(part);
    if (kill.starts == 1 && !has_lost(part))
      throw Error(fmt::format("worker {} was not killed: the training ended before step {}",
                              arguments_.kill_rank, arguments_.steps / 2 + 1),
                  ExitCode::internal);
    if (is_complete(part, arguments_.steps)) break;
    leave_if_asked();
    if (kill.starts == kMostStarts)
      throw jobs::job_failure(fmt::format("training, started {} times,", kMostStarts), part, killed);
  }
  for (const std::string& run : {undisturbed, killed}) fs::remove_all(run + "/run", ignored);
  return kill;
}

/// Once for each row that was measured.
void CompareSweep::kill_if_due(CompareRow& row) {
  if (arguments_.kill_rank < 0 || row.kill || row.samples.empty() || !row.failure.empty()) return;
  CompareKill kill;
  try {
    kill = run_kill(row, folder_of(row, row.link.empty() ? "kill" : fmt::format("link-{}-kill", row.link)));
  } catch (const Error& error) {
    leave_if_asked();
    kill.failure = error.what();
  }
  row.kill = std::move(kill);
  log_info(fmt::format("{}: with worker {} killed: {}", row.name(), arguments_.kill_rank,
                       row.kill->failure.empty()
                           ? fmt::format("{:.0f} % of throughput, in {} start{}", 100 * row.kill->goodput(),
                                         row.kill->starts, row.kill->starts == 1 ? "" : "s")
                           : "FAILED"));
  save();
}

}  // namespace lockstep::compare
