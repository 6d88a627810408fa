#include "train/loop/run_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/text.h"
#include "config/run_config.h"
#include "control/last_words.h"
#include "lockstep/error.h"
#include "observe/sinks/append_file.h"
#include "observe/sinks/tensorboard_sink.h"
#include "plan/stage_table.h"
#include "plan/step_estimate.h"
#include "report/run_page.h"
#include "train/loop/run_recorder.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using observe::kMetricsFile;

constexpr const char* kConfigFile = "config.effective.textproto";
constexpr const char* kCheckpointFolder = "checkpoints";

/// How long a run that has failed waits for each sink.
constexpr std::chrono::milliseconds kFarewell{5000};

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) throw IoError(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
}

bool holds_something(const fs::path& path) {
  std::error_code unknown;  // a folder that cannot be read is reported where it is opened
  return fs::is_directory(path, unknown) ? !fs::is_empty(path, unknown) : fs::exists(path, unknown);
}

/// A line if it is not float32 that is computed in.
std::string describe(const config::PrecisionOptions& precision, device::DeviceKind device) {
  switch (precision.compute) {
    case config::ComputeType::float32:
      return "";
    case config::ComputeType::tf32:
      return device == device::DeviceKind::cuda
                 ? "products round their factors to TF32; all is stored as float32\n"
                 : "precision.compute TF32 is FLOAT32 on CPUs\n";
    default:
      return fmt::format(
          "activations and weights are stored as {}; parameters, their gradients and sums are float32\n",
          name_of(precision.storage()));
  }
}

/// "served bytes: 1.2 MiB on rank 2, ..."
std::string served_bytes(const compile::CompiledRun& compiled) {
  const layout::Ownership& ownership = compiled.ownership();
  std::vector<std::string> parts;
  for (int rank = 0; rank < ownership.ranks(); ++rank)
    if (ownership.owns(rank))
      parts.push_back(fmt::format("{} on rank {}", human_bytes(ownership.owned_bytes(rank)), rank));
  return "served bytes: " + join(parts, ", ") + "\n";
}

/// What is other mathematics than that of workers that wait for each other.
std::string describe_sessions(const compile::CompiledRun& compiled, const config::RunConfig& config) {
  const layout::Layout& layout = compiled.layout();
  if (!layout.has_sessions()) return "";
  const int pushes = layout.pushes_per_step();
  std::string text;
  if (layout.mode == layout::ServerMode::stale) {
    text = fmt::format("a worker reads parameters that lack up to {} update{}\n", layout.bound,
                       layout.bound == 1 ? "" : "s");
  } else {
    text = fmt::format("each worker's push is an update: {} of them are a step, of {} samples each\n", pushes,
                       config.trainer.global_batch / pushes);
    text += config.parallel.async_learning_rate == parallel::AsyncLearningRate::as_stated
                ? "the learning rate is that of the config, for each push\n"
                : fmt::format("the learning rate is divided by {:.4g}\n",
                              parallel::async_divisor(config.parallel.async_learning_rate, pushes));
    if (std::ranges::any_of(compiled.graph().parameters, [](const auto& parameter) {
          return parameter.spec.role == ops::ParameterRole::statistic;
        }))
      text += "running statistics move with each push, exponentially\n";
  }
  if (config.trainer.clip_norm > 0) text += "gradients are clipped push by push\n";
  return text;
}

/// Of the one that serves most.
std::string memory_of_servers(const compile::CompiledRun& compiled, const config::RunConfig& config) {
  const layout::RankRange& servers = compiled.ownership().owners();
  int largest = servers.first;
  for (int rank = servers.first; rank < servers.end(); ++rank)
    if (compiled.ownership().owned_bytes(rank) > compiled.ownership().owned_bytes(largest)) largest = rank;
  return fmt::format("memory of a server, rank {}:\n{}", largest,
                     describe(plan_worker_memory(compiled, compiled.compile(largest), config)));
}

void remove_file(const fs::path& path) {
  std::error_code problem;
  fs::remove(path, problem);
  if (problem) throw IoError(fmt::format("cannot remove {}: {}", path.string(), problem.message()));
}

/// Metrics whose checkpoints are gone are somebody's, still: they get another name.
void set_aside(const fs::path& path) {
  if (!holds_something(path)) return;
  fs::path aside;
  for (int number = 1; aside.empty() || fs::exists(aside); ++number)
    aside = path.string() + fmt::format(".{}", number);
  fs::rename(path, aside);
  log_warning(fmt::format("{} is of a run without a usable checkpoint; it is now {}", path.string(),
                          aside.filename().string()));
}

/// report.json, and the page unless that takes long.
void write_report_to(const fs::path& directory, const std::string& report, bool quiet) {
  constexpr uintmax_t kMostBytes = 16 << 20;  // of metrics: a second's reading
  try {
    observe::replace_file((directory / report::kReportFile).string(), report + "\n");
    if (fs::file_size(directory / kMetricsFile) <= kMostBytes)
      report::write_run_page(directory.string());
    else if (!quiet)
      log_info(
          fmt::format("{} is large; `lockstep report {}` draws the run", kMetricsFile, directory.string()));
  } catch (const std::exception& error) {
    log_warning(fmt::format("the run has ended, but its report is not written: {}", error.what()));
  }
}

}  // namespace

RunOutput::RunOutput(const RunOutputOptions& options, Worker& worker)
    : options_(options), worker_(&worker), layout_(layout::to_string(worker.compiled().layout())) {}

RunOutput::~RunOutput() {
  close(observe::RunEnd::failed, "", kFarewell);
  if (progress_) set_before_log({});
}

DirectoryLock::DirectoryLock(const std::string& directory, FileSystem& files) {
  files.make_directory(directory);
  // The folder itself is locked, so that no file is left behind.
  descriptor_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw IoError(fmt::format("cannot open the folder {}: {}", directory, std::strerror(errno)));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return;  // some file systems have no locks
  ::close(descriptor_);
  throw ConfigError(
      fmt::format("--out {}: another run is writing there; wait for it or name another folder", directory));
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

std::unique_ptr<DirectoryLock> RunOutput::claim_directory(const std::string& directory,
                                                          const config::RunConfig& config) {
  if (directory.empty()) return nullptr;
  std::error_code unknown;
  if (fs::exists(directory, unknown) && !fs::is_directory(directory, unknown))
    throw ConfigError(fmt::format("--out {}: is a file; name a folder", directory));
  auto lock = std::make_unique<DirectoryLock>(directory);
  // Where a checkpoint is to be written, this would be found out only then.
  for (fs::directory_iterator entry(fs::path(directory) / kCheckpointFolder, unknown), end;
       !unknown && entry != end; entry.increment(unknown))
    if (std::error_code gone; entry->path().filename().string().starts_with("step-") &&
                              entry->is_symlink(gone) && !fs::exists(entry->path(), gone) && !gone)
      throw ConfigError(fmt::format("--out {}: {} is a link that leads nowhere; remove it", directory,
                                    entry->path().string()));
  if (config.checkpoint.resume == checkpoint::ResumePolicy::automatic) return lock;
  for (const char* name : {kMetricsFile, kCheckpointFolder, observe::kEventFolder})
    if (holds_something(fs::path(directory) / name))
      throw ConfigError(
          fmt::format("--out {} holds a run already ({}). Go on with it by --resume auto, name another "
                      "folder, or remove this one",
                      directory, name));
  return lock;
}

void RunOutput::show_start() {
  const auto& compiled = worker_->compiled();
  const auto& config = worker_->config();
  const bool verbose = log_level() == LogLevel::debug;
  const int workers = compiled.layout().workers();
  const bool has_stages = compiled.ownership().stages() > 1;
  const layout::RankRange& owners = compiled.ownership().owners();
  std::string text = fmt::format(
      "{} worker{}{}, layout {}, {} reduction; model of {} parameters\n", workers, workers == 1 ? "" : "s",
      compiled.ownership().has_servers()
          ? fmt::format(" and {} server{}", owners.count, owners.count == 1 ? "" : "s")
          : "",
      layout_, config.parallel.reduction == layout::Reduction::fast ? "FAST" : "REPRODUCIBLE",
      compiled.graph().parameter_count());
  text += layout::describe(compiled.division(), has_stages ? "replica" : "worker") + "\n";
  if (has_stages && verbose) text += plan::describe(plan::summarize_pipeline(compiled), compiled.layout());
  text += plan::describe_step(compiled);
  text += describe(config.precision, worker_->device().kind());
  if (compiled.narrows_gradients())
    text += fmt::format("gradients are summed over workers as {}{}\n", name_of(config.parallel.wire),
                        compiled.keeps_residuals() ? ", with error feedback" : "");
  if (config.batch_scaling) text += config::describe_batch_scaling(config) + "\n";
  if (config.parallel.reduction == layout::Reduction::fast && config.states_virtual_replicas)
    text += "trainer.virtual_replicas is unused under FAST\n";
  text += fmt::format("training data: {}\n", worker_->train_data().description());
  if (worker_->has_eval_data())
    text += fmt::format("evaluation data: {}\n", worker_->eval_data().description());
  text += describe_sessions(compiled, config);
  message(text + describe_memory(verbose));
}

std::string RunOutput::describe_memory(bool verbose) const {
  const auto& compiled = worker_->compiled();
  const config::RunConfig& config = worker_->config();
  const bool some_serve = compiled.role_of(0) == "worker, server";
  const std::string who = some_serve                          ? "rank 0, which serves too"
                          : compiled.ownership().stages() > 1 ? "rank 0, of stage 0"
                                                              : "each worker";
  const WorkerMemory memory = plan_worker_memory(compiled, worker_->programs(), config);
  const std::string served = compiled.ownership().has_servers() || some_serve ? served_bytes(compiled) : "";
  if (!verbose)
    return fmt::format("memory of {} ({}): {}, and {} of the host beside it\n{}", who,
                       worker_->device().description(), human_bytes(memory.device.total_bytes),
                       human_bytes(memory.host.total_bytes()), served);
  return fmt::format("memory of {} ({}):\n{}{}{}", who, worker_->device().description(), describe(memory),
                     served, compiled.ownership().has_servers() ? memory_of_servers(compiled, config) : "");
}

observe::RunFacts RunOutput::facts(int64_t first_step, const std::string& run_id) const {
  const auto& config = worker_->config();
  observe::RunFacts facts{.directory = options_.directory,
                          .run_id = run_id,
                          .resume_step = {},
                          .total_steps = worker_->total_steps(),
                          .config = config::kept_text(config),
                          .fields = config.fields,
                          .tags = {{"layout", layout_},
                                   {"world_size", std::to_string(worker_->compiled().ownership().ranks())},
                                   {"device", worker_->device().description()},
                                   {"host", host_name()},
                                   {"run_id", run_id},
                                   {"config_hash", to_hex(config.config_hash)},
                                   {"math_hash", to_hex(config.math_hash)}}};
  if (!options_.version.empty()) facts.tags.emplace_back("version", options_.version);
  if (config.checkpoint.resume != checkpoint::ResumePolicy::never) facts.resume_step = first_step;
  return facts;
}

observe::MetricsOptions metrics_of(const RunOutputOptions& options, const config::RunConfig& config) {
  observe::MetricsOptions metrics = config.metrics;
  if (options.metrics_file_only) {
    metrics.tensorboard = false;
    metrics.prometheus_port = 0;
    metrics.mlflow.reset();
    metrics.machine_every_seconds = 0;
    metrics.histogram_every_steps = 0;
    metrics.noise_scale_every_steps = 0;
  }
  if (options.directory.empty()) metrics.histogram_every_steps = 0;
  return metrics;
}

MachineWishes machine_wishes(const RunOutputOptions& options, const config::RunConfig& config) {
  const observe::MetricsOptions metrics = metrics_of(options, config);
  observe::RunFacts facts;
  facts.directory = options.directory;
  return {.every_seconds = metrics.machine_every_seconds, .has_sinks = observe::has_sinks(metrics, facts)};
}

void RunOutput::open(int64_t first_step, const std::string& run_id, bool several_hosts) {
  const auto& config = worker_->config();
  const fs::path directory(options_.directory);
  if (!directory.empty()) {
    if (first_step == 0)
      for (const char* name : {kMetricsFile, observe::kEventFolder, report::kReportFile, report::kPageFile,
                               report::kExplanationFile})
        set_aside(directory / name);
    write_file(directory / kConfigFile, config::kept_text(config));
    // They are about the end of the start before. A complete run stays as it is.
    is_complete_ = first_step > 0 && first_step >= worker_->total_steps();
    if (first_step > 0 && !is_complete_ && !options_.metrics_file_only)
      for (const char* name : {report::kReportFile, report::kPageFile}) remove_file(directory / name);
  }
  const observe::MetricsOptions metrics = metrics_of(options_, config);
  observe::RunFacts facts = this->facts(first_step, run_id);
  facts.several_hosts = several_hosts;
  facts.machine_every_seconds = metrics.machine_every_seconds;
  sinks_.emplace(metrics, facts, config.checkpoint.on_failure == checkpoint::SaveFailurePolicy::stop);
  sinks_->open();
  if (!directory.empty() && facts.resume_step) {
    resumed_at_ = facts.resume_step;
    for (const auto& row : observe::read_metrics((directory / kMetricsFile).string()))
      evaluated_then_ = evaluated_then_ || (row.step() == first_step && row.has("eval_ms"));
  }
  const int64_t total = worker_->total_steps();
  message(first_step < total
              ? fmt::format("{} steps, {:.2f} epochs", total, worker_->length().epochs_after(total))
              : fmt::format(
                    "nothing is left to train: after step {} of {}, {:.2f} epochs; raise trainer.{} to go on",
                    first_step, total, worker_->length().epochs_after(first_step),
                    config.trainer.steps > 0 ? "steps" : "epochs"));
  progress_.emplace(observe::ProgressOptions{.total = worker_->total_steps(),
                                             .first = first_step,
                                             .enabled = !options_.quiet && config.metrics.progress});
  set_before_log([this] { progress_->clear(); });
}

void RunOutput::follow(Worker& worker) {
  worker_ = &worker;
  layout_ = layout::to_string(worker.compiled().layout());
}

void RunOutput::message(const std::string& text) {
  if (options_.quiet) return;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    log_info(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
}

void RunOutput::step(const StepRecord& record) {
  const auto& config = worker_->config();
  if (!sinks_->empty() && (record.step % config.metrics.log_every_steps == 0 ||
                           record.step == worker_->total_steps() || record.skipped || record.spike)) {
    const double samples = static_cast<double>(config.trainer.global_batch);
    std::vector<observe::NamedMetric> metrics;
    if (record.has_loss()) metrics.emplace_back("loss", record.loss);
    metrics.insert(metrics.end(), {{"learning_rate", record.learning_rate},
                                   {"grad_norm", record.gradient_norm},
                                   {"step_ms", record.step_ms},
                                   {"exposed_comm_ms", record.exposed_communication_ms},
                                   {"data_wait_ms", record.data_wait_ms}});
    if (record.step_ms > 0) metrics.emplace_back("samples_per_second", samples / record.step_ms * 1000);
    if (tells_accuracy(worker_->compiled().graph()) && record.has_loss())
      metrics.emplace_back("accuracy", record.correct / record.count);
    if (record.skipped) metrics.emplace_back("skipped", 1);
    if (record.loss_scale) metrics.emplace_back("loss_scale", *record.loss_scale);
    if (record.spike && record.spike->loss_z) metrics.emplace_back("loss_z", *record.spike->loss_z);
    if (record.spike && record.spike->norm_z) metrics.emplace_back("grad_norm_z", *record.spike->norm_z);
    metrics.emplace_back("layout", layout_);
    sinks_->write({.step = record.step, .metrics = std::move(metrics)});
  }
  std::string suffix =
      record.has_loss() ? fmt::format("loss {:.4f}", record.loss) : "no loss: all labels are ignored";
  if (record.speed_of_light) suffix += fmt::format(", {:.0f} % of light", 100 * *record.speed_of_light);
  progress_->update(record.step, suffix);
}

void RunOutput::evaluation(const EvaluationRecord& record) {
  const bool classifier = tells_accuracy(worker_->compiled().graph());
  // What was evaluated before the run was stopped was written then.
  if (!sinks_->empty() && !(record.step == resumed_at_ && evaluated_then_)) {
    std::vector<observe::NamedMetric> metrics;
    if (record.has_loss()) metrics.emplace_back("eval_loss", record.loss);
    metrics.emplace_back("eval_ms", record.milliseconds);
    if (record.has_loss() && classifier) metrics.emplace_back("eval_accuracy", record.accuracy);
    metrics.emplace_back("layout", layout_);
    sinks_->write({.step = record.step, .metrics = std::move(metrics)});
  }
  if (!record.has_loss())
    return log_warning(
        fmt::format("step {}: the evaluation has no loss, since all labels are ignored", record.step));
  message(fmt::format("step {}: evaluation loss {:.4f}{}", record.step, record.loss,
                      classifier ? fmt::format(", accuracy {:.2f} %", 100 * record.accuracy) : ""));
}

void RunOutput::noise_scale(int64_t step, double scale) {
  if (!sinks_->empty())
    sinks_->write({.step = step, .metrics = {{"noise_scale", scale}, {"layout", layout_}}});
}

void RunOutput::text(int64_t step, const std::string& text) {
  if (!sinks_->empty()) {
    std::vector<observe::NamedMetric> metrics;
    metrics.emplace_back(observe::kTextMetric, text);
    metrics.emplace_back("layout", layout_);
    sinks_->write({.step = step, .metrics = std::move(metrics)});
  }
  message(fmt::format("step {}: the model writes\n{}", step, text));
}

void RunOutput::before_checkpoint() {
  if (sinks_) sinks_->sync();
}

void RunOutput::checkpoint(int64_t, const std::string& path) { message(fmt::format("saved {}", path)); }

void RunOutput::finish() {
  if (progress_) progress_->finish();
  if (sinks_) sinks_->finish();
}

void RunOutput::close(observe::RunEnd end, const std::string& report,
                      std::chrono::milliseconds patience) noexcept {
  if (!sinks_) return;
  sinks_->close(end, report, patience);
  sinks_.reset();
  if (!report.empty() && !options_.directory.empty() && !options_.metrics_file_only && !is_complete_)
    write_report(report);
}

void RunOutput::write_report(const std::string& report) const noexcept {
  // As for metrics at the end: a disk that hangs must not keep the run from ending.
  constexpr std::chrono::seconds kPatience{40};
  try {
    const bool done =
        control::run_at_most(kPatience, [directory = options_.directory, quiet = options_.quiet, report] {
          write_report_to(directory, report, quiet);
        });
    if (!done)
      log_warning(fmt::format("the run has ended, but its report could not be written to {} within {} s",
                              options_.directory, kPatience.count()));
  } catch (const std::exception& error) {
    log_warning(fmt::format("the run has ended, but its report is not written: {}", error.what()));
  }
}

}  // namespace lockstep::train
