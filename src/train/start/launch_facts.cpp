#include "train/start/launch_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "base/core_quota.h"
#include "comm/gather_texts.h"
#include "control/addresses.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

std::optional<int> number(const LaunchFacts& facts, const std::string& name) {
  const auto text = facts.variable(name);
  int value = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc{})
    return std::nullopt;
  return value;
}

/// Launchers that tell their processes so, and do not speak PMIx. A variable of the size alone may be
/// somebody's own.
struct OtherLauncher {
  const char *name, *size, *rank;  // size: null if no variable tells it
};
constexpr OtherLauncher kOtherLaunchers[] = {
    {"MVAPICH2's launcher", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"MVAPICH's launcher", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK"},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
    {"PALS (mpiexec, aprun)", nullptr, "PALS_RANKID"},
    {"torchrun, or a launcher like it,", "WORLD_SIZE", "RANK"},
};

/// What says so: "WORLD_SIZE=4, RANK=1"; "" if nothing does.
std::string started_several(const LaunchFacts& facts, const OtherLauncher& launcher) {
  const auto rank = number(facts, launcher.rank);
  const auto size = launcher.size != nullptr ? number(facts, launcher.size) : std::nullopt;
  if (!rank || (*rank < 1 && size.value_or(1) < 2)) return "";
  const std::string says = fmt::format("{}={}", launcher.rank, *rank);
  return size ? fmt::format("{}={}, {}", launcher.size, *size, says) : says;
}

}  // namespace

LaunchFacts launch_facts(int world_size, int ranks_on_host) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int host_cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool known = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  return {.variable = [](const std::string& name) -> std::optional<std::string> {
            const char* value = std::getenv(name.c_str());
            return value == nullptr ? std::nullopt : std::optional<std::string>(value);
          },
          .world_size = world_size,
          .allowed_cores = known ? CPU_COUNT(&allowed) : host_cores,
          .host_cores = host_cores,
          .ranks_on_host = ranks_on_host,
          .quota_cores = core_quota()};
}

void check_launcher(const LaunchFacts& facts) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const auto started = number(facts, name); started && *started != facts.world_size)
      throw ConfigError(
          fmt::format("the launcher started {} processes ({}), but MPI connects {} of them, so each would "
                      "train alone: start lockstep with the mpirun of the Open MPI that it is linked with",
                      *started, name, facts.world_size));
  if (facts.world_size > 1) return;
  for (const OtherLauncher& launcher : kOtherLaunchers)
    if (const std::string found = started_several(facts, launcher); !found.empty())
      throw ConfigError(
          fmt::format("{} started several processes ({}), but does not connect them by Open MPI, so each "
                      "would train alone: use launcher/lockstep-run -n N -- train ..., or mpirun of the Open "
                      "MPI that lockstep is linked with; if this process should train alone, unset {}",
                      launcher.name, found, launcher.rank));
  // Of a job step; a batch script's shell does not have it.
  if (const auto tasks = number(facts, "SLURM_STEP_NUM_TASKS"); tasks && *tasks > 1)
    throw ConfigError(fmt::format(
        "srun started {} processes, but each would train alone: use srun --mpi=pmix (srun --mpi=list "
        "shows what there is), or mpirun",
        *tasks));
}

bool goes_on_after_losses(const LaunchFacts& facts) {
  const auto said = facts.variable("OMPI_MCA_orte_enable_recovery");
  return said && (*said == "1" || *said == "true" || *said == "yes");
}

void end_lost_process(int rank, int64_t pid) {
  const char* job = std::getenv("PMIX_NAMESPACE");
  if (job == nullptr || pid <= 1) return;
  // The number may be another process's by now, or another container's.
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  bool same_job = false, same_rank = false;
  for (std::string variable; std::getline(file, variable, '\0');) {
    same_job = same_job || variable == fmt::format("PMIX_NAMESPACE={}", job);
    same_rank = same_rank || variable == fmt::format("PMIX_RANK={}", rank);
  }
  if (same_job && same_rank) ::kill(static_cast<pid_t>(pid), SIGKILL);
}

std::vector<std::string> launch_warnings(const LaunchFacts& facts, int threads) {
  std::vector<std::string> warnings;
  const bool cores_lie_idle = facts.ranks_on_host * facts.allowed_cores < facts.host_cores;
  if (facts.allowed_cores < threads && cores_lie_idle)
    warnings.push_back(fmt::format(
        "every rank is bound to {} of {} cores, but has {} busy threads: start with mpirun --bind-to none, "
        "or with launcher/lockstep-run",
        facts.allowed_cores, facts.host_cores, threads));
  if (facts.ranks_on_host > facts.host_cores) {
    warnings.push_back(
        fmt::format("{} ranks share {} cores, so they wait for each other; start at most one per core",
                    facts.ranks_on_host, facts.host_cores));
    if (const auto yields = facts.variable("OMPI_MCA_mpi_yield_when_idle"); !yields || *yields == "0")
      warnings.emplace_back(
          "waiting ranks do not give up their core: set OMPI_MCA_mpi_yield_when_idle=1, or start with "
          "launcher/lockstep-run");
  }
  return warnings;
}

int idle_threads(const LaunchFacts& facts) {
  // Whether the ranks may run on the same cores is not known: they must, if there are not as many cores as
  // all may run on.
  const bool own_cores = facts.ranks_on_host * facts.allowed_cores <= facts.host_cores;
  int threads = own_cores ? facts.allowed_cores : facts.allowed_cores / facts.ranks_on_host;
  if (facts.quota_cores > 0) threads = std::min(threads, facts.quota_cores / facts.ranks_on_host);
  return std::max(threads, 1);
}

std::vector<int> hosts_of_ranks(comm::Communicator& world, const std::string& host_name) {
  const auto names = comm::gather_texts(world, control::own_machine(host_name), comm::kPatience);
  std::vector<std::string> known;
  std::vector<int> hosts;
  for (const auto& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    hosts.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(name);
  }
  return hosts;
}

}  // namespace lockstep::train
