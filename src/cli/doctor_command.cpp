#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "comm/communicator.h"
#include "doctor/check.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

struct DoctorArguments {
  doctor::Request request;
  OutputArguments output;
};

int look(const DoctorArguments& arguments) {
  if (comm::started_by_mpi_launcher())
    throw ConfigError(
        "doctor looks at one host and runs without mpirun; under mpirun: lockstep doctor --job");
  const auto verdicts =
      doctor::run_checks(doctor::host_checks(), arguments.request, [&](const doctor::Verdict& verdict) {
        if (!arguments.output.json) write_result(doctor::line_of(verdict));
      });
  write_result(arguments.output.json ? doctor::json_of(verdicts) : doctor::summary_of(verdicts));
  return doctor::exit_code_of(verdicts);
}

}  // namespace

void add_doctor_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "doctor", "Says what is wrong with this host, or with a job's hosts, and how to mend it",
      "  lockstep doctor configs/mnist_lenet.textproto --data-dir DIR --out runs\n"
      "  mpirun -n 4 lockstep doctor --job --out runs");
  const auto arguments = std::make_shared<DoctorArguments>();
  auto& request = arguments->request;
  command.add_option("CONFIG", request.config, "A config, whose data is opened as a training would");
  command
      .add_option("--set", request.overrides, "path=value: replaces a field of the config; may be repeated")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  command.add_option("--data-dir", request.data_directory, "Where the data's files are")->type_name("DIR");
  command.add_option("--out", request.output_directory, "The folder that runs shall write to")
      ->type_name("DIR");
  arguments->output.add_json_to(command);
  command.callback([&selected, arguments] { selected = [arguments] { return look(*arguments); }; });
}

}  // namespace lockstep::cli
