#include "cli/compare_sweep.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/hash.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/compare_page.h"
#include "cli/compare_sample.h"
#include "cli/job.h"
#include "lockstep/error.h"
#include "plan/link_traffic.h"
#include "train/loop/stop_request.h"
#include "train/worker/compile_options.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMostRounds = 100;

/// Somebody has asked to stop.
struct Interrupted {};
void leave_if_asked() {
  if (train::stop_requested()) throw Interrupted();
}

/// Complete or as it was.
void replace_file(const fs::path& path, const std::string& text) {
  const fs::path next = path.string() + ".next";
  {
    std::ofstream file(next, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    if (!file) throw IoError(fmt::format("cannot write {}: {}", next.string(), std::strerror(errno)));
  }
  std::error_code error;
  fs::rename(next, path, error);
  if (error) throw IoError(fmt::format("cannot write {}: {}", path.string(), error.message()));
}

}  // namespace

CompareSweep::CompareSweep(const CompareArguments& arguments)
    : arguments_(arguments), directory_(arguments.directory) {
  // Before there are hosts to remove.
  train::install_stop_request(/*alone=*/true);
  check_can_start_jobs("compare", 1);
  const config::RunConfig config =
      config::load_run_config(arguments.config.path, arguments.config.all_overrides(), std::nullopt);
  const std::time_t now = std::time(nullptr);
  results_ = {.command = arguments.command_line(),
              .config = arguments.config.path,
              .config_hash = to_hex(config.config_hash),
              .version = LOCKSTEP_VERSION,
              .host = host_name(),
              .began = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)),
              .weak = arguments.is_weak(),
              .steps = arguments.steps,
              .proof_steps = arguments.proof_steps,
              .cores = static_cast<int>(std::thread::hardware_concurrency()),
              .straggler = arguments.straggler,
              .target_loss = arguments.target_loss,
              .device = arguments.device.device,
              .price = arguments.price};
  results_.rows = arguments.rows(config.trainer.global_batch);
  results_.forecasts = arguments.predicted_rows(config.trainer.global_batch);
  for (CompareRow& row : results_.rows) check(row);
  for (CompareRow& row : results_.forecasts) check(row);
  if (!arguments.hostfile.empty()) {
    place_ = hostfile_place(arguments.hostfile);
    results_.hosts_text = read_text_file(arguments.hostfile);
  }
  if (!arguments.links.empty()) place_ = hosts_.emplace().place();
  if (arguments.resume && fs::exists(fs::path(directory_) / "results.json")) {
    resume();
  } else {
    workplace_.emplace("compare", directory_);
    directory_ = workplace_->path();
  }
}

std::vector<std::string> CompareSweep::overrides(const CompareRow& row, bool proof) const {
  std::vector<std::string> all = arguments_.config.all_overrides();
  if (proof) all.push_back("parallel.reduction=REPRODUCIBLE");
  if (results_.weak) all.push_back(fmt::format("trainer.global_batch={}", row.global_batch));
  all.push_back("trainer.eval_every_steps=0");
  all.push_back("trainer.eval_at_end=false");
  return all;
}

TrainingCommand CompareSweep::command(const CompareRow& row, bool proof) const {
  return {.config = arguments_.config.path,
          .assignments = overrides(row, proof),
          .layout = row.layout,
          .device = arguments_.device.device,
          .allow_shared_gpu = arguments_.device.allow_shared_gpu,
          .place = place_};
}

config::RunConfig CompareSweep::config_of(const CompareRow& row,
                                          const std::vector<std::string>& assignments) const {
  std::vector<std::string> all = overrides(row, false);
  all.insert(all.end(), assignments.begin(), assignments.end());
  return config::load_run_config(arguments_.config.path, all, layout::to_string(row.layout));
}

/// Refuses what cannot run before anything does.
void CompareSweep::check(CompareRow& row) const {
  const int processes = row.layout.world_size();
  check_can_start_jobs("compare", processes);
  const std::string workers = fmt::format("{} worker{}: ", row.workers, row.workers == 1 ? "" : "s");
  const std::string place = fmt::format("layout '{}': ", layout::to_string(row.layout));
  try {
    const config::RunConfig config = config_of(row);
    compile::CompileFacts facts{.world_size = processes, .shared_memory = processes > 1};
    if (!row.link.empty() && processes > 1) {
      facts.hosts = alternating_hosts(processes);
      facts.shared_memory = false;
    }
    const compile::CompiledRun run = train::compile_run(config, facts);
    run.check();
    if (!facts.hosts.empty()) row.link_bytes_theory = plan::busiest_link_bytes(run, facts.hosts);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    throw ConfigError(workers + (message.starts_with(place) ? message : place + message));
  }
}

/// Takes over what an earlier start has found.
void CompareSweep::resume() {
  const std::string path = (fs::path(directory_) / "results.json").string();
  CompareResults before = compare_results_from_text(read_text_file(path), path);
  if (!results_.continues(before))
    throw ConfigError(fmt::format(
        "--resume: {} is of another comparison (config, layouts, workers, steps or version differ); name "
        "another folder",
        path));
  before.price = results_.price;
  before.target_loss = results_.target_loss;
  before.command = results_.command;
  results_ = std::move(before);
  // What failed may have been the machine's fault.
  for (CompareRow& row : results_.rows) {
    row.failure.clear();
    if (row.proof == CompareProof::failed) row.proof = CompareProof::not_tried;
  }
}

void CompareSweep::use_link(const std::string& link) {
  if (!hosts_ || rate_ == link) return;
  hosts_->set_rate(link);
  rate_ = link;
}

void CompareSweep::save() const {
  replace_file(fs::path(directory_) / "results.json", to_json(results_).dump(1) + "\n");
  replace_file(fs::path(directory_) / "results.csv", results_.csv());
  replace_file(fs::path(directory_) / "report.html", compare_page(results_));
}

bool CompareSweep::run() {
  try {
    save();
    prove();
    if (arguments_.predicts) predict();
    measure();
  } catch (const Interrupted&) {
    save();
    return false;
  }
  save();
  return true;
}

void CompareSweep::prove() {
  if (arguments_.proof_steps == 0) return;
  std::vector<int64_t> batches;
  for (const CompareRow& row : results_.rows)
    if (std::ranges::find(batches, row.global_batch) == batches.end()) batches.push_back(row.global_batch);
  for (const int64_t batch : batches) {
    const CompareRow* first_row = nullptr;
    std::optional<TracedTraining> first;
    const bool known = std::ranges::all_of(results_.rows, [&](const CompareRow& row) {
      return row.global_batch != batch || row.proof != CompareProof::not_tried;
    });
    if (known) continue;
    for (CompareRow& row : results_.rows)
      if (row.global_batch == batch) prove(row, first_row, first);
  }
}

void CompareSweep::prove(CompareRow& row, const CompareRow*& first_row,
                         std::optional<TracedTraining>& first) {
  const std::string name = layout::to_string(row.layout);
  // The same programs over another link.
  const auto same = std::ranges::find_if(results_.rows, [&](const CompareRow& other) {
    return &other != &row && other.link != row.link && other.layout == row.layout &&
           other.global_batch == row.global_batch && other.proof != CompareProof::not_tried &&
           other.proof != CompareProof::failed;
  });
  if (same != results_.rows.end()) {
    row.proof = same->proof;
    row.proof_detail = same->proof_detail;
    return;
  }
  use_link(row.link);
  row.proof_detail.clear();
  if (row.layout.has_sessions()) {
    row.proof = CompareProof::other_mathematics;
    return;
  }
  TracedTraining training;
  const std::string folder = folder_of(row, "proof");
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  try {
    run_traced(command(row, true),
               {"--resume", "never", "--stop-after", fmt::to_string(arguments_.proof_steps)}, folder,
               training, [](pid_t) {
                 if (train::stop_requested()) throw Interrupted();
               });
    if (first) compare_traces(layout::to_string(first_row->layout), *first, name, training);
    row.proof = training.difference ? CompareProof::different : CompareProof::identical;
    if (training.difference) row.proof_detail = trim(describe_difference(training));
  } catch (const Error& error) {
    leave_if_asked();
    row.proof = CompareProof::failed;
    row.proof_detail = error.what();
  }
  log_info(
      fmt::format("{}: {} steps under REPRODUCIBLE: {}", name, arguments_.proof_steps, name_of(row.proof)));
  if (!first && row.proof == CompareProof::identical) {
    first = std::move(training);
    first_row = &row;
  }
  save();
}

void CompareSweep::predict() {
  Forecast forecast({.directory = directory_,
                     .place = place_,
                     .stands_in = hosts_.has_value(),
                     .use_link = [this](const std::string& link) { use_link(link); },
                     .watch =
                         [](pid_t) {
                           if (train::stop_requested()) throw Interrupted();
                         },
                     .command = [this](const CompareRow& row) { return command(row, false); },
                     .config =
                         [this](const CompareRow& row, const std::vector<std::string>& assignments) {
                           return config_of(row, assignments);
                         }});
  const auto each = [](std::vector<CompareRow>& rows, const auto& step_ms) {
    for (CompareRow& row : rows) {
      if (row.predicted_ms > 0) continue;
      leave_if_asked();
      try {
        row.predicted_ms = step_ms(row);
      } catch (const ConfigError& error) {
        log_warning(fmt::format("{}: is not predicted: {}", row.name(), error.what()));
      }
    }
  };
  log_info("measures what layers and messages take, for predictions");
  try {
    each(results_.rows, [&](const CompareRow& row) { return forecast.step_ms(row); });
    each(results_.forecasts, [&](const CompareRow& row) { return forecast.step_ms_apart(row); });
    predict_ties(forecast);
  } catch (const Error& error) {
    leave_if_asked();
    // Its jobs fail for all rows alike; measuring says more of why.
    log_warning(fmt::format("no further steps are predicted: {}", error.what()));
  }
  save();
}

/// Of every layout with servers, beside all-reduce with as many workers.
void CompareSweep::predict_ties(Forecast& forecast) {
  const auto all_reduce_of = [&](const CompareRow& row) {
    return std::ranges::find_if(results_.rows, [&](const CompareRow& other) {
      return other.link == row.link && other.workers == row.workers && other.predicted_ms > 0 &&
             other.layout.sync == layout::SyncMethod::all_reduce;
    });
  };
  for (const CompareRow& row : results_.rows) {
    const auto beside = all_reduce_of(row);
    const bool compares = row.layout.sync == layout::SyncMethod::parameter_server && row.workers > 1 &&
                          row.predicted_ms > 0 && beside != results_.rows.end();
    if (!compares || (row.link.empty() && arguments_.hostfile.empty())) continue;
    const auto knows = [&](bool servers) {
      return std::ranges::any_of(results_.ties, [&](const CompareTie& tie) {
        return tie.workers == row.workers && tie.kind == row.kind && tie.servers.has_value() == servers &&
               (!servers || tie.link == row.link);
      });
    };
    leave_if_asked();
    if (!knows(false)) results_.ties.push_back(forecast.tying_rate(row, *beside));
    leave_if_asked();
    if (row.layout.dedicated_servers() > 0 && !row.layout.has_sessions() && !knows(true))
      results_.ties.push_back(forecast.tying_servers(row, *beside));
  }
}

void CompareSweep::measure() {
  const double precision = arguments_.precision_percent / 100;
  const auto is_done = [&](const CompareRow& row) {
    return !row.failure.empty() || row.is_precise(precision);
  };
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
    }
    if (is_over()) return;
  }
}

/// What a training of `row` reports.
Json CompareSweep::run_training(const CompareRow& row, const std::string& folder,
                                const std::vector<std::string>& options) const {
  const TrainingCommand training = command(row, false);
  ProcessJob job{.processes = row.layout.world_size(),
                 .arguments = training.arguments(),
                 .place = training.place,
                 .stdout_path = folder + "/result.json",
                 .stderr_path = folder + "/stderr.txt",
                 .watch = [](pid_t) {
                   if (train::stop_requested()) throw Interrupted();
                 }};
  job.arguments.insert(job.arguments.end(),
                       {"--quiet", "--resume", "never", "--stop-after", fmt::to_string(arguments_.steps)});
  job.arguments.insert(job.arguments.end(), options.begin(), options.end());
  const JobOutcome outcome = run_to_end(job);
  if (outcome.code != 0) throw job_failure("training", outcome, folder);
  return Json::parse(outcome.output);
}

void CompareSweep::measure(CompareRow& row, int round, size_t number) {
  const std::string folder =
      folder_of(row, fmt::format("{}round-{}", row.link.empty() ? "" : "link-" + row.link + "-", round));
  try {
    use_link(row.link);
    // The first run tells its losses, too.
    std::vector<std::string> options;
    std::error_code ignored;
    const bool tells_losses = row.losses.empty();
    if (tells_losses) {
      fs::remove_all(folder, ignored);
      options = {"--out", folder + "/run", "--set=metrics.log_every_steps=1"};
    }
    row.samples.push_back(sample_of(run_training(row, folder, options), round));
    if (tells_losses) {
      row.losses = losses_of(folder + "/run/metrics.jsonl", row.global_batch);
      fs::remove_all(folder + "/run/checkpoints", ignored);  // which nobody asked for
    }
    if (!arguments_.straggler.empty())
      row.samples.back().straggler_step_ms =
          sample_of(run_training(row, folder + "-straggler", {"--straggler", arguments_.straggler}), round)
              .step_ms;
  } catch (const nlohmann::json::exception& error) {
    row.failure = fmt::format("its report in {} is not as expected: {}", folder, error.what());
  } catch (const Error& error) {
    // The signal may have reached the training before this program.
    leave_if_asked();
    row.failure = error.what();
  }
  log_info(fmt::format(
      "round {}, {} of {}: {}: {}{}", round, number, results_.rows.size(), row.name(),
      row.failure.empty() ? fmt::format("{:.2f} ms a step", row.samples.back().step_ms) : "FAILED",
      is_over() ? "" : fmt::format("; at most {} left", human_seconds(seconds_left()))));
  save();
}

}  // namespace lockstep::cli
