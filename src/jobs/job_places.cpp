#include "jobs/job_places.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "base/host_name.h"
#include "base/log.h"
#include "base/text.h"
#include "jobs/child_process.h"
#include "jobs/hostfile.h"

namespace lockstep::jobs {
namespace {

namespace fs = std::filesystem;

constexpr int kSkipped = 77;  // what the script ends with if it cannot work

/// Of the checkout that this program was built in.
std::string find_script() {
  const fs::path script = fs::path(own_program()).parent_path() / "../../../scripts/two_hosts.sh";
  std::error_code error;
  const fs::path found = fs::canonical(script, error);
  if (error)
    throw DeviceError(
        fmt::format("--link simulates two hosts with a checkout's scripts/two_hosts.sh, but there is no {}; "
                    "run lockstep from a checkout, or name real hosts with --hostfile",
                    script.lexically_normal().string()));
  return found.string();
}

/// Names of hosts whose program has ended without removing them, as one does that is killed.
std::vector<std::string> abandoned_hosts() {
  static const std::regex form("lockstep-(compare([0-9]{1,9}))-a");
  std::vector<std::string> ids;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/run/netns", error)) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (!std::regex_match(name, match, form)) continue;
    const int maker = std::stoi(match[2]);
    // Numbers of processes come again: this one has not made any yet.
    if (maker == ::getpid() || (::kill(maker, 0) != 0 && errno == ESRCH)) ids.push_back(match[1]);
  }
  return ids;
}

bool is_this_host(const std::string& name) {
  const std::string own = host_name();
  return name == "localhost" || name == "127.0.0.1" || name == own ||
         name.substr(0, name.find('.')) == own.substr(0, own.find('.'));
}

}  // namespace

StandInHosts::StandInHosts()
    : folder_("compare", ""), script_(find_script()), id_(fmt::format("compare{}", ::getpid())) {
  for (const std::string& id : abandoned_hosts()) remove(id);
  call(id_, {"up"}, "make two hosts on this machine");
}

StandInHosts::~StandInHosts() { remove(id_); }

void StandInHosts::remove(const std::string& id) const {
  try {
    call(id, {"down"}, "remove the two hosts");
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

void StandInHosts::set_rate(const std::string& rate) {
  if (rate == "none")
    call(id_, {"unthrottle"}, "free the link");
  else
    call(id_, {"throttle", rate}, "throttle the link");
}

JobPlace StandInHosts::place() const {
  return {.starter = {script_, "--id", id_, "on", "host-a", "--"},
          .mpirun_options = {"--host", "host-a,host-b", "--map-by", "node", "--rank-by", "slot"}};
}

void StandInHosts::call(const std::string& id, std::vector<std::string> arguments,
                        const std::string& what) const {
  arguments.insert(arguments.begin(), {"--id", id});
  const JobOutcome outcome = run_to_end({.program = script_,
                                         .arguments = arguments,
                                         .environment = {},
                                         .stdout_path = folder_.path() + "/hosts.out",
                                         .stderr_path = folder_.path() + "/hosts.err",
                                         .watch = {}});
  if (outcome.code == 0) return;
  throw DeviceError(fmt::format("--link: cannot {}: {}{}", what, last_lines(outcome.error, 5),
                                outcome.code == kSkipped ? "; or name real hosts with --hostfile" : ""));
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

std::string slurm_hosts() {
  const char *job = std::getenv("SLURM_JOB_ID"), *nodes = std::getenv("SLURM_JOB_NUM_NODES");
  const char* names = std::getenv("SLURM_JOB_NODELIST");
  return job && names && nodes && std::string_view(nodes) != "1" ? names : "";
}

bool passes_on(std::string_view variable) {
  // Those of jobs tell which processes belong to one on this host.
  return variable == "LD_LIBRARY_PATH" || variable.starts_with("OMP_") ||
         (variable.starts_with("LOCKSTEP_") && !variable.starts_with("LOCKSTEP_JOB_"));
}

JobPlace hostfile_place(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const IoError& error) {
    throw ConfigError(fmt::format("--hostfile: {}", error.what()));
  }
  const std::vector<std::string> hosts = hosts_of(text, path);
  if (hosts.empty())
    throw ConfigError(fmt::format("--hostfile {}: names no host; a line is 'HOST slots=N'", path));
  const auto far = std::ranges::find_if_not(hosts, is_this_host);
  if (far != hosts.end() && !on_path("ssh") && !std::getenv("OMPI_MCA_plm_rsh_agent"))
    throw DeviceError(fmt::format(
        "--hostfile {}: mpirun needs ssh to reach {}, but ssh is not on PATH; install it (Debian: apt-get "
        "install openssh-client), or name another program in OMPI_MCA_plm_rsh_agent",
        path, *far));
  JobPlace place{.starter = {}, .mpirun_options = {"--hostfile", path}};
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (passes_on(name)) place.mpirun_options.insert(place.mpirun_options.end(), {"-x", std::string(name)});
  }
  return place;
}

}  // namespace lockstep::jobs
