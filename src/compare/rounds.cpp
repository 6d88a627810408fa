#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "compare/sample.h"
#include "compare/sweep.h"
#include "jobs/job.h"
#include "lockstep/error.h"

namespace lockstep::compare {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMostRounds = 100;

}  // namespace

void CompareSweep::measure() {
  rounds_began_ = Clock::now();
  const double precision = arguments_.precision_percent / 100;
  const auto is_done = [&](const CompareRow& row) {
    return !row.failure.empty() || row.is_precise(precision);
  };
  for (CompareRow& row : results_.rows) kill_if_due(row);  // if a stop came between
  int round = 1;
  for (const CompareRow& row : results_.rows)
    for (const CompareSample& sample : row.samples) round = std::max(round, sample.round);
  for (; round <= kMostRounds; ++round) {
    if (std::ranges::all_of(results_.rows, is_done)) return;
    for (size_t i = 0; i < results_.rows.size(); ++i) {
      CompareRow& row = results_.rows[i];
      const bool has_it = !row.samples.empty() && row.samples.back().round >= round;
      if (!row.failure.empty() || has_it) continue;
      // One run is made however long it takes: without it there is nothing to tell.
      if (is_over() && !row.samples.empty()) continue;
      measure(row, round, i + 1);
      kill_if_due(row);
    }
    if (is_over()) return;
  }
}

/// Of the rounds, by what runs took so far: those that are made at any rate, each with its kill, and as many
/// more as there is time for, of rows that are not known well enough.
double CompareSweep::seconds_to_go() const {
  if (measured_runs_ == 0) return 0;
  double needed = 0, wanted = 0;
  for (const CompareRow& row : results_.rows) {
    if (!row.failure.empty() || row.is_precise(arguments_.precision_percent / 100)) continue;
    const auto runs = static_cast<double>(row.samples.size());
    needed += runs == 0 ? 1 : 0;
    wanted += std::max(1.0, static_cast<double>(kFewestRuns) - runs);
  }
  const double each = measured_seconds_ / measured_runs_;
  return std::max(needed * each, std::min(wanted * each, seconds_left())) + seconds_of_kills(each);
}

/// Of those that are still due. Each is a training in peace and one that is started twice: three runs, before
/// any is known.
double CompareSweep::seconds_of_kills(double run_seconds) const {
  if (arguments_.kill_rank < 0) return 0;
  int due = 0, known = 0;
  double seconds = 0;
  for (const CompareRow& row : results_.rows) {
    due += !row.kill && row.failure.empty() ? 1 : 0;
    if (!row.kill || !row.kill->failure.empty()) continue;
    ++known;
    seconds += row.kill->seconds + row.kill->undisturbed_seconds;
  }
  return due * (known == 0 ? 3 * run_seconds : seconds / known);
}

/// What a training of `row` reports.
Json CompareSweep::run_training(const CompareRow& row, const std::string& folder,
                                const std::vector<std::string>& options) const {
  const jobs::TrainingCommand training = command(row, false);
  jobs::ProcessJob job{.processes = row.layout.world_size(),
                       .arguments = training.arguments(),
                       .place = training.place,
                       .stdout_path = folder + "/result.json",
                       .stderr_path = folder + "/stderr.txt",
                       .watch = [](pid_t) { leave_if_asked(); }};
  job.arguments.insert(job.arguments.end(),
                       {"--quiet", "--resume", "never", "--stop-after", fmt::to_string(arguments_.steps)});
  job.arguments.insert(job.arguments.end(), options.begin(), options.end());
  const jobs::JobOutcome outcome = jobs::run_to_end(job);
  if (outcome.code != 0) throw jobs::job_failure("training", outcome, folder);
  Json report = Json::parse(outcome.output);
  if (const auto steps = report.at("steps").get<int64_t>(); steps < arguments_.steps)
    throw ConfigError(
        fmt::format("the config trains for {} steps, fewer than --steps {}; measure fewer, or "
                    "let it train longer",
                    steps, arguments_.steps));
  return report;
}

/// Of a row in a round: complete, or not there.
CompareSample CompareSweep::sample(CompareRow& row, int round, const std::string& folder) {
  use_link(row.link);
  // The first run tells its losses, too.
  std::vector<std::string> options;
  std::error_code ignored;
  const bool tells_losses = row.losses.empty();
  if (tells_losses) {
    fs::remove_all(folder, ignored);
    options = {"--out", folder + "/run", "--set=metrics.log_every_steps=1"};
  }
  const Json report = run_training(row, folder, options);
  CompareSample sample = sample_of(report, round);
  if (row.links_theory.empty() && sample.hosts > 1) add_theory(row, hosts_of_ranks(report));
  if (!arguments_.straggler.empty())
    sample.straggler_step_ms =
        sample_of(run_training(row, folder + "-straggler", {"--straggler", arguments_.straggler}), round)
            .step_ms;
  if (tells_losses) {
    row.losses = losses_of(folder + "/run/metrics.jsonl", row.global_batch);
    fs::remove_all(folder + "/run/checkpoints", ignored);  // which nobody asked for
  }
  return sample;
}

void CompareSweep::measure(CompareRow& row, int round, size_t number) {
  const std::string folder =
      folder_of(row, fmt::format("{}round-{}", row.link.empty() ? "" : "link-" + row.link + "-", round));
  const Clock::time_point began = Clock::now();
  try {
    row.samples.push_back(sample(row, round, folder));
  } catch (const nlohmann::json::exception& error) {
    row.failure = fmt::format("its report in {} is not as expected: {}", folder, error.what());
  } catch (const Error& error) {
    // The signal may have reached the training before this program.
    leave_if_asked();
    row.failure = error.what();
  }
  ++measured_runs_;
  measured_seconds_ += 1e-3 * milliseconds_between(began, Clock::now());
  const double left = seconds_to_go();
  log_info(fmt::format(
      "round {}, {} of {}: {}: {}{}", round, number, results_.rows.size(), row.name(),
      row.failure.empty() ? fmt::format("{:.2f} ms a step", row.samples.back().step_ms) : "FAILED",
      left > 0 ? fmt::format("; about {} left", human_seconds(left)) : ""));
  save();
}

}  // namespace lockstep::compare
