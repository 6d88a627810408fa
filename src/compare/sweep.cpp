#include "compare/sweep.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/hash.h"
#include "base/host_name.h"
#include "base/text.h"
#include "compare/machine.h"
#include "compare/page.h"
#include "jobs/child_process.h"
#include "jobs/job.h"
#include "lockstep/error.h"

namespace lockstep::compare {
namespace {

namespace fs = std::filesystem;

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

/// The first line of what it says; "" if there is none.
std::string mpirun_version(const std::string& folder) {
  if (!jobs::on_path("mpirun")) return "";
  const jobs::JobOutcome outcome = jobs::run_to_end({.program = "mpirun",
                                                     .arguments = {"--version"},
                                                     .environment = {},
                                                     .stdout_path = folder + "/mpirun.txt",
                                                     .stderr_path = folder + "/mpirun-errors.txt",
                                                     .watch = {}});
  return outcome.output.substr(0, outcome.output.find('\n'));
}

}  // namespace

CompareSweep::CompareSweep(const CompareArguments& arguments)
    : arguments_(arguments), directory_(arguments.directory) {
  // Before there are hosts to remove.
  train::install_stop_request(/*alone=*/true);
  jobs::check_can_start_jobs("compare", arguments.hostfile.empty() ? 1 : 2);
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
              .price = arguments.price,
              .cpu = cpu_model(),
              .kernel = kernel_release(),
              .seed = config.trainer.seed,
              .threads = config.parallel.intra_op_threads,
              .server_threads = config.parallel.server_threads,
              .kill_rank = arguments.kill_rank};
  for (const auto& [name, value] : config.math_fields) {
    if (name.starts_with("data."))
      results_.data += (results_.data.empty() ? "" : ", ") + name.substr(5) + " " + value;
    if (name == "precision.compute") results_.element_type = value;
  }
  if (config.trainer.steps > 0 && config.trainer.steps < arguments.steps)
    throw ConfigError(
        fmt::format("--steps {}: the config trains for {}; measure fewer, or let it train longer (--set "
                    "trainer.steps={})",
                    arguments.steps, config.trainer.steps, arguments.steps));
  std::vector<std::string> refused;
  results_.rows = arguments.rows(config.trainer.global_batch, refused);
  results_.forecasts = arguments.predicted_rows(config.trainer.global_batch, refused);
  check(std::move(refused));
  if (!arguments.hostfile.empty()) {
    place_ = jobs::hostfile_place(arguments.hostfile);
    results_.hosts_text = read_text_file(arguments.hostfile);
  }
  // mpirun takes the hosts of an allocation by itself.
  if (const std::string nodes = jobs::slurm_hosts();
      !nodes.empty() && arguments.links.empty() && arguments.hostfile.empty())
    results_.hosts_text = "Slurm: " + nodes;
  if (!arguments.links.empty()) place_ = hosts_.emplace().place();
  if (arguments.resume && fs::exists(fs::path(directory_) / "results.json")) {
    resume();
  } else {
    workplace_.emplace("compare", directory_);
    directory_ = workplace_->path();
  }
  results_.mpirun = mpirun_version(directory_ + "/machine");
}

std::vector<std::string> CompareSweep::overrides(const CompareRow& row, bool proof) const {
  std::vector<std::string> all = arguments_.config.all_overrides();
  if (proof) all.push_back("parallel.reduction=REPRODUCIBLE");
  if (results_.weak) all.push_back(fmt::format("trainer.global_batch={}", row.global_batch));
  // What is measured are steps: without evaluations, and what needs them, and without checkpoints.
  for (const char* without : {"trainer.eval_every_steps=0", "trainer.eval_at_end=false",
                              "trainer.early_stopping=0", "checkpoint.keep_best=false",
                              "checkpoint.every_steps=0", "checkpoint.at_end=false", "checkpoint.keep=3"})
    all.emplace_back(without);
  return all;
}

jobs::TrainingCommand CompareSweep::command(const CompareRow& row, bool proof) const {
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

/// Takes over what an earlier start has found.
void CompareSweep::resume() {
  const std::string path = (fs::path(directory_) / "results.json").string();
  CompareResults before = compare_results_from_text(read_text_file(path), path);
  if (const std::string differs = results_.first_difference(before); !differs.empty())
    throw ConfigError(fmt::format(
        "--resume: {} belongs to another comparison: {} differs; name another folder", path, differs));
  before.price = results_.price;
  before.target_loss = results_.target_loss;
  before.command = results_.command;
  results_ = std::move(before);
  // What failed may have been the machine's fault.
  for (CompareRow& row : results_.rows) {
    row.failure.clear();
    if (row.kill && !row.kill->failure.empty()) row.kill.reset();
    if (row.proof == CompareProof::failed) row.proof = CompareProof::not_tried;
  }
}

void CompareSweep::use_link(const std::string& link) {
  if (!hosts_ || rate_ == link) return;
  rate_.clear();
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

}  // namespace lockstep::compare
