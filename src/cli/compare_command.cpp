#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "compare/sweep.h"
#include "device/device.h"
#include "jobs/job_places.h"
#include "lockstep/error.h"
#include "train/loop/stop_request.h"

namespace lockstep::cli {
namespace {

/// `auto` decided for this host, so that what GPUs cannot do is refused before anything runs, and --resume
/// tells GPUs from CPUs. Jobs on other hosts decide there.
compare::CompareArguments with_device(compare::CompareArguments arguments) {
  if (arguments.device.device == "auto" && arguments.hostfile.empty() && jobs::slurm_hosts().empty())
    arguments.device.device = device::probe_gpus().devices.empty() ? "cpu" : "cuda";
  return arguments;
}

int compare(const compare::CompareArguments& asked) {
  const compare::CompareArguments arguments = with_device(asked);
  compare::CompareSweep comparing(arguments);
  const bool complete = comparing.run();
  const compare::CompareResults& results = comparing.results();
  write_result(arguments.output.json ? to_json(results).dump() + "\n"
                                     : fmt::format("{}\n\n{}\ndrawn in {}/report.html\n", results.headline(),
                                                   results.table(), comparing.folder()));
  if (!complete) {
    log_warning(fmt::format("stopped by request; resume with --resume --out {}", comparing.folder()));
    return static_cast<int>(train::stop_exit_code());
  }
  return static_cast<int>(comparing.all_are_well() ? ExitCode::done : ExitCode::internal);
}

}  // namespace

void add_compare_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "compare", "Finds out which layout is faster, and whether it changes the results",
      "  lockstep compare configs/mnist_lenet.textproto --data-dir DIR --workers 1,2 \\\n"
      "    --layouts \"sync=all_reduce; sync=ps,servers=1; sync=ps,servers=1,mode=async\" --out comparison");
  const auto arguments = std::make_shared<compare::CompareArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command
      .add_option("--layouts", arguments->layouts,
                  "Layouts without dp, separated by ';'; others are compared with the first")
      ->type_name("LIST")
      ->required();
  command.add_option("--workers", arguments->workers, "Numbers of workers; dedicated servers come on top")
      ->type_name("N,...")
      ->capture_default_str();
  command
      .add_option("--scaling", arguments->scaling,
                  "strong: the global batch stays as it is; weak: it grows with the workers")
      ->check(CLI::IsMember({"strong", "weak"}))
      ->capture_default_str();
  command.add_option("--steps", arguments->steps, "Steps of each measured run")
      ->check(CLI::Range(int64_t{10}, int64_t{1} << 40))
      ->capture_default_str();
  command
      .add_option("--proof-steps", arguments->proof_steps,
                  "Steps whose bits are compared under REPRODUCIBLE; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      .add_option("--precision", arguments->precision_percent,
                  "Measure until the 95 % interval of each median is within so many percent of it")
      ->transform([](const std::string& text) {
        return text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
      })
      ->check(finite_number())
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  command.add_option("--minutes", arguments->minutes, "No further round begins after so many minutes")
      ->check(finite_number())
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--out", arguments->directory,
                  "Empty folder for report.html, results.json, results.csv and all runs")
      ->type_name("DIR")
      ->required();
  command
      .add_option(
          "--link", arguments->links,
          "Make two hosts on this machine, joined by a link of each rate in turn: none, 1gbit, 200mbit, ...; "
          "needs root")
      ->type_name("RATE,...");
  command
      .add_option("--hostfile", arguments->hostfile,
                  "Use these hosts, in the order of their lines 'HOST slots=N'; they must share --out")
      ->type_name("FILE");
  command
      .add_option("--price", arguments->price,
                  "Price of a host per hour; adds what a million samples cost, servers' hosts included")
      ->check(finite_number())
      ->check(CLI::Range(0.0, 1e9));
  command
      .add_option("--straggler", arguments->straggler,
                  "Measure each row once more with a worker that computes FACTOR times as long, such as 0:2")
      ->type_name("RANK:FACTOR");
  command
      .add_option("--kill", arguments->kill_rank,
                  "Train each row twice more: undisturbed, and with this worker killed in the middle, then "
                  "restarted from the last checkpoint")
      ->type_name("RANK")
      ->check(CLI::Range(0, layout::kMostProcesses - 1));
  command
      .add_option("--target-loss", arguments->target_loss,
                  "Say how long each row trains until its loss is as low as this")
      ->check(finite_number())
      ->check(CLI::PositiveNumber);
  command
      .add_option(
          "--predict", arguments->predicted_workers,
          "With --link or --hostfile: also predict these numbers of workers, each process on its own host")
      ->type_name("N,...");
  command.add_flag("!--no-prediction", arguments->predicts,
                   "Predict nothing, and measure no layers and messages for it");
  command.add_flag("--resume", arguments->resume, "Continue the comparison in --out, if there is one");
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return compare(*arguments); }; });
}

}  // namespace lockstep::cli
