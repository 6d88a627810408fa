#include "doctor/launcher.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/host_name.h"
#include "base/text.h"
#include "comm/mpi_library.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kTrial = "mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 true";
constexpr const char* kInstall = "apt-get install openmpi-bin";

struct CommandResult {
  int code = -1;
  std::string output;
};

/// By a shell; both of its outputs.
CommandResult run_shell(const std::string& command) {
  CommandResult result;
  std::FILE* const pipe = ::popen(("( " + command + " ) 2>&1 </dev/null").c_str(), "re");
  if (pipe == nullptr) return result;
  std::array<char, 4096> part{};
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe))
    result.output.append(part.data(), got);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool mpirun_is_on_path() { return run_shell("command -v mpirun").code == 0; }

/// "4.1.4" of "mpirun (Open MPI) 4.1.4" or "Open MPI v4.1.4, package: ..."; "" if that is not Open MPI.
std::string open_mpi_version(const std::string& text) {
  const size_t name = text.find("Open MPI");
  if (name == std::string::npos) return "";
  const size_t begin = text.find_first_of("0123456789", name);
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

/// Lines of an error message, without the frames that Open MPI draws.
std::string words_of(const std::string& output) {
  std::vector<std::string> lines;
  for (const auto& line : split(output, '\n'))
    if (line.find_first_not_of("- ") != std::string::npos) lines.push_back(line);
  if (lines.size() > 6) lines.resize(6);
  return join(lines, " ");
}

bool has_value(const char* name, std::string_view wanted) {
  const char* value = std::getenv(name);
  return value != nullptr && value == wanted;
}

bool is_set(const char* name) { return has_value(name, "1"); }

/// What Open MPI does not do by itself: let a rank's threads run on all cores, and start more ranks than
/// cores.
std::vector<std::string> wanted_flags() {
  std::vector<std::string> flags;
  if (!has_value("OMPI_MCA_hwloc_base_binding_policy", "none")) flags.emplace_back("--bind-to none");
  if (!is_set("OMPI_MCA_rmaps_base_oversubscribe"))
    flags.push_back(fmt::format("--oversubscribe for more than {} ranks", ::sysconf(_SC_NPROCESSORS_ONLN)));
  return flags;
}

}  // namespace

Finding judge_mpi(const MpiFacts& facts) {
  const std::string library = open_mpi_version(facts.library);
  if (library.empty())
    return {Level::fail,
            "this program is linked with an MPI that is not Open MPI: " + words_of(facts.library),
            "apt-get install libopenmpi-dev, and build again"};
  if (facts.mpirun.empty())
    return {Level::fail, "there is no mpirun on PATH; jobs of several processes need it", kInstall};
  const std::string mpirun = open_mpi_version(facts.mpirun);
  if (mpirun.empty())
    return {Level::fail, "mpirun is not Open MPI's: " + words_of(facts.mpirun).substr(0, 80),
            "export PATH=/usr/bin:$PATH"};
  if (mpirun != library)
    return {Level::fail,
            fmt::format("mpirun is from Open MPI {}, but this program's library is from {}: processes would "
                        "not find each other",
                        mpirun, library),
            "export PATH=FOLDER:$PATH, with the mpirun of that version"};
  if (std::atoi(library.c_str()) < 4)
    return {Level::warn,
            fmt::format("Open MPI {} is older than the oldest version that lockstep was tested with (4.1)",
                        library),
            kInstall};
  return {Level::ok, fmt::format("Open MPI {}, mpirun and library", library)};
}

Finding judge_mpirun(const MpirunFacts& facts) {
  if (!facts.found) return {Level::skip, "there is no mpirun to try"};
  if (facts.code == 0)
    return {Level::ok, fmt::format("starts two processes and ends them in {}{}", human_seconds(facts.seconds),
                                   facts.flags.empty() ? ""
                                                       : "; trainings want " + join(facts.flags, ", ") +
                                                             " (launcher/lockstep-run gives them)")};
  const std::string ended = fmt::format("ends with {}: {}", facts.code, words_of(facts.output));
  if (const size_t letters = letters_at_begin(facts.host); letters > kMostLettersOfHost)
    return {Level::fail,
            fmt::format("{}; it crashes if a host's name begins with more than {} letters and hyphens, and "
                        "this host's begins with {}",
                        ended, kMostLettersOfHost, letters),
            "hostname NAME, or a container's --hostname NAME, with a shorter one"};
  if (!facts.missing.empty()) {
    std::vector<std::string> names, values;
    for (const auto& [name, value] : facts.missing) {
      names.push_back(name);
      values.push_back(name + "=" + value);
    }
    return {Level::fail,
            fmt::format("{}; it needs {}, which this environment does not set (launcher/lockstep-run does)",
                        ended, join(names, " and ")),
            "export " + join(values, " ")};
  }
  return {Level::fail, ended, kTrial};
}

std::map<std::string, std::string> missing_for_mpirun() {
  std::map<std::string, std::string> missing;
  if (std::getenv("PATH") == nullptr) missing["PATH"] = "/usr/local/bin:/usr/bin:/bin";
  // It looks for files of settings there, and takes any folder. None that others may write to.
  if (std::getenv("HOME") == nullptr && ::getpwuid(::geteuid()) == nullptr) missing["HOME"] = "/nonexistent";
  return missing;
}

size_t letters_at_begin(std::string_view host) {
  const auto other = std::ranges::find_if_not(
      host, [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '-'; });
  return static_cast<size_t>(other - host.begin());
}

Finding judge_root(const RootFacts& facts) {
  if (facts.user != 0) return {Level::ok, fmt::format("runs as user {}, not as root", facts.user)};
  if (facts.confirmed) return {Level::ok, "runs as root, and mpirun is told to allow it"};
  return {Level::warn,
          "runs as root, but bare mpirun refuses to (launcher/lockstep-run tells it to allow it)",
          "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
}

std::vector<Finding> look_at_mpi(const Request&) {
  MpiFacts facts{.mpirun = {}, .library = comm::mpi_library()};
  if (mpirun_is_on_path()) facts.mpirun = run_shell("mpirun --version").output;
  return {judge_mpi(facts)};
}

std::vector<Finding> look_at_mpirun(const Request&) {
  MpirunFacts facts{.found = mpirun_is_on_path(),
                    .output = {},
                    .flags = {},
                    .host = host_name(),
                    .missing = missing_for_mpirun()};
  if (facts.found) {
    // Open MPI's jobs of one user make and remove the same folder, and may fail once for each other's sake.
    for (int trials = 0; trials < 2 && (trials == 0 || facts.code != 0); ++trials) {
      const auto start = Clock::now();
      const CommandResult trial = run_shell(kTrial);
      facts.seconds = milliseconds_between(start, Clock::now()) / 1000;
      facts.code = trial.code;
      facts.output = trial.output;
    }
    facts.flags = wanted_flags();
  }
  return {judge_mpirun(facts)};
}

std::vector<Finding> look_at_root(const Request&) {
  return {judge_root(
      {.user = static_cast<int>(::geteuid()),
       .confirmed = is_set("OMPI_ALLOW_RUN_AS_ROOT") && is_set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")})};
}

}  // namespace lockstep::doctor
