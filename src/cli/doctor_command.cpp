#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "comm/communicator.h"
#include "doctor/check.h"
#include "doctor/job_check.h"
#include "lockstep/error.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

struct DoctorArguments {
  doctor::Request request;
  jobs::OutputArguments output;
  bool job = false;
};

/// Each finding at once, if they are not one JSON object.
void tell(const DoctorArguments& arguments, const doctor::Finding& finding) {
  if (!arguments.output.json) write_result(doctor::line_of(finding));
}

void conclude(const DoctorArguments& arguments, const std::vector<doctor::Finding>& findings) {
  write_result(arguments.output.json ? doctor::json_of(findings) : doctor::summary_of(findings));
}

std::string list_of_checks() {
  std::string text = "Checks of a host:\n";
  for (const auto& check : doctor::host_checks())
    text += fmt::format("  {:<14}  {}\n", check.name, check.looks_at);
  return text + "docs/doctor.md explains them, and the checks of --job.";
}

int look_at_host(const DoctorArguments& arguments) {
  if (comm::started_by_mpi_launcher())
    throw ConfigError(
        "doctor looks at one host and runs without mpirun; under mpirun: lockstep doctor --job");
  const auto findings = doctor::run_checks(doctor::host_checks(), arguments.request,
                                           [&](const doctor::Finding& finding) { tell(arguments, finding); });
  conclude(arguments, findings);
  return doctor::exit_code_of(findings);
}

/// Whether the launcher calls this process the first one of its host.
bool is_first_of_host() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"})
    if (const char* value = std::getenv(name)) return std::string_view(value) == "0";
  return !comm::started_by_mpi_launcher();
}

/// What each host can say of itself within a job; how mpirun starts one is known by then.
std::vector<doctor::Finding> host_findings(const doctor::Request& request) {
  if (!is_first_of_host()) return {};
  std::vector<doctor::Check> checks;
  for (const auto& check : doctor::host_checks())
    if (check.in_job) checks.push_back(check);
  return doctor::run_checks(checks, request, [](const doctor::Finding&) {});
}

int look_at_job(const DoctorArguments& arguments) {
  // Before MPI starts: a process with its threads must not be divided.
  const doctor::JobRequest request{.output_directory = arguments.request.output_directory,
                                   .host_findings = host_findings(arguments.request)};
  return train::run_in_world([&](train::World& world) {
    const auto findings = doctor::look_at_job(
        world, request, [&](const doctor::Finding& finding) { tell(arguments, finding); });
    if (world.rank() == 0) conclude(arguments, findings);
    // mpirun returns the code of whoever has another one than 0, and ends those that have not left yet.
    return world.rank() == 0 ? doctor::exit_code_of(findings) : static_cast<int>(ExitCode::done);
  });
}

}  // namespace

void add_doctor_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "doctor", "Checks this host, or a job's hosts and links, and prints how to mend what is wrong",
      "  lockstep doctor configs/mnist_lenet.textproto --data-dir DIR --out runs\n"
      "  mpirun -n 4 lockstep doctor --job --out runs");
  const auto arguments = std::make_shared<DoctorArguments>();
  auto& request = arguments->request;
  command.add_flag("--job", arguments->job,
                   "Check a whole job, started by mpirun: its ranks, and the links between them");
  command.add_option("CONFIG", request.config, "Config file, whose data is opened as a training would");
  command.add_option("--set", request.overrides, "Replaces a field of the config; may be repeated")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  command.add_option("--data-dir", request.data_directory, "Folder of the data files")->type_name("DIR");
  command.add_option("--out", request.output_directory, "Folder that runs will write to")->type_name("DIR");
  add_json(command, arguments->output);
  command.footer(list_of_checks());
  command.callback([&selected, arguments] {
    if (!arguments->request.overrides.empty() && arguments->request.config.empty())
      throw ConfigError("doctor: --set replaces a field of CONFIG, which is missing");
    selected = [arguments] { return arguments->job ? look_at_job(*arguments) : look_at_host(*arguments); };
  });
}

}  // namespace lockstep::cli
