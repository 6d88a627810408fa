#include "cli/job_places.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/log.h"
#include "base/text.h"
#include "cli/child_process.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kSkipped = 77;  // what the script ends with where it cannot work

/// Of the checkout that this program was built in.
std::string find_script() {
  const fs::path script = fs::path(own_program()).parent_path() / "../../../scripts/two_hosts.sh";
  std::error_code error;
  const fs::path found = fs::canonical(script, error);
  if (error)
    throw DeviceError(fmt::format(
        "--link makes two hosts on this machine by scripts/two_hosts.sh of a checkout, and {} is not "
        "there; run the lockstep of a checkout, or name real hosts by --hostfile",
        script.lexically_normal().string()));
  return found.string();
}

}  // namespace

StandInHosts::StandInHosts()
    : folder_("compare", ""), script_(find_script()), id_(fmt::format("compare{}", ::getpid())) {
  call({"up"}, "make two hosts on this machine");
}

StandInHosts::~StandInHosts() {
  try {
    call({"down"}, "remove the two hosts");
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

void StandInHosts::set_rate(const std::string& rate) {
  if (rate == "none")
    call({"unthrottle"}, "free the link");
  else
    call({"throttle", rate}, "throttle the link");
}

JobPlace StandInHosts::place() const {
  return {.starter = {script_, "--id", id_, "on", "host-a", "--"},
          .mpirun_options = {"--host", "host-a,host-b", "--map-by", "node"}};
}

void StandInHosts::call(std::vector<std::string> arguments, const std::string& what) const {
  arguments.insert(arguments.begin(), {"--id", id_});
  const JobOutcome outcome = run_to_end({.program = script_,
                                         .arguments = arguments,
                                         .environment = {},
                                         .stdout_path = folder_.path() + "/hosts.out",
                                         .stderr_path = folder_.path() + "/hosts.err",
                                         .watch = {}});
  if (outcome.code == 0) return;
  throw DeviceError(fmt::format("--link: cannot {}: {}{}", what, last_lines(outcome.error, 5),
                                outcome.code == kSkipped ? "; real hosts can be named by --hostfile" : ""));
}

std::string link_rate_fault(const std::string& rate) {
  static const std::regex form("[1-9][0-9]{0,5}(kbit|mbit|gbit)");
  return rate == "none" || std::regex_match(rate, form) ? ""
                                                        : "expected none, or a rate such as 1gbit or 200mbit";
}

double link_bits_per_second(const std::string& rate) {
  const double unit = rate.ends_with("kbit") ? 1e3 : rate.ends_with("mbit") ? 1e6 : 1e9;
  return std::stod(rate) * unit;
}

double link_burst_bytes(const std::string& rate) {
  // As scripts/two_hosts.sh says it.
  return rate == "none" ? 0 : std::max(link_bits_per_second(rate) / 8e3, 32768.0);
}

JobPlace hostfile_place(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const IoError& error) {
    throw ConfigError(fmt::format("--hostfile: {}", error.what()));
  }
  bool names_hosts = false;
  for (const std::string& line : split(text, '\n'))
    names_hosts |= !trim(std::string_view(line).substr(0, line.find('#'))).empty();
  if (!names_hosts)
    throw ConfigError(fmt::format("--hostfile {}: names no host; a line is 'HOST slots=N'", path));
  return {.starter = {}, .mpirun_options = {"--hostfile", path}};
}

}  // namespace lockstep::cli
