#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::train {

/// How this process was started and where it may run, according to the operating system and the launcher.
struct LaunchFacts {
  std::function<std::optional<std::string>(const std::string& name)> variable;  ///< of the environment
  int world_size = 1;                                                           ///< as MPI says, or 1
  int allowed_cores = 1;  ///< that this process may run on
  int host_cores = 1;     ///< that are there
  int ranks_on_host = 1;
  int quota_cores = 0;  ///< whose time the control group of all ranks of the host allows; 0: all
};
LaunchFacts launch_facts(int world_size, int ranks_on_host);

/// Throws ConfigError if a launcher started several processes that do not find each other, so that each would
/// train alone ("every process is rank 0"): another MPI's mpirun, srun without --mpi=pmix, torchrun.
void check_launcher(const LaunchFacts& facts);

/// Whether the launcher lets the others continue after a process is lost (mpirun --enable-recovery).
bool goes_on_after_losses(const LaunchFacts& facts);

/// Kills `pid` on this host if it is `rank` of this process's job, as the launcher numbers it.
void end_lost_process(int rank, int64_t pid);

/// What makes this launch slow, and what to change, one line each; empty if all is well. `threads`: the
/// number with which one rank computes and reads.
std::vector<std::string> launch_warnings(const LaunchFacts& facts, int threads);

/// The number of threads on which a rank may compute while it has nothing else to do, as before its first
/// step: its share of the host's cores, at least 1.
int idle_threads(const LaunchFacts& facts);

/// COLLECTIVE: for each rank the number of its host, counted from 0 in the order of ranks.
std::vector<int> hosts_of_ranks(comm::Communicator& world, const std::string& host_name);

}  // namespace lockstep::train
