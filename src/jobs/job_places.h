#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jobs/job.h"
#include "jobs/workplace.h"

namespace lockstep::jobs {

/// Two hosts made of network namespaces of this machine, joined by one link (scripts/two_hosts.sh). They are
/// removed with this object or, if its program was killed, when the next one is made. Half of a job's ranks,
/// the first ones, are on the first.
class StandInHosts {
 public:
  /// Throws DeviceError if they cannot be made: the script, programs or rights are missing.
  StandInHosts();
  ~StandInHosts();
  StandInHosts(const StandInHosts&) = delete;

  /// "none", or a rate such as "1gbit", for each direction. REQUIRES: link_rate_fault(rate) is "".
  void set_rate(const std::string& rate);
  JobPlace place() const;

 private:
  void remove(const std::string& id) const;
  void call(const std::string& id, std::vector<std::string> arguments, const std::string& what) const;

  Workplace folder_;  ///< takes what the script says
  std::string script_, id_;
};

/// What is wrong with a rate; "" if nothing is.
std::string link_rate_fault(const std::string& rate);
/// REQUIRES: `rate` has no fault, and is not "none".
double link_bits_per_second(const std::string& rate);
/// Bytes that pass at once over the link of StandInHosts after it was idle.
double link_burst_bytes(const std::string& rate);

/// The nodes of the Slurm allocation in which this program runs, in Slurm's notation; "" if there is none, or
/// if it has only one node.
std::string slurm_hosts();
/// Whether an environment variable is passed to programs on other hosts: those that decide what this program
/// does or which libraries it finds. mpirun passes its own variables on.
bool passes_on(std::string_view variable);
/// The hosts of a hostfile, filled in its order. Throws ConfigError if it cannot be read or names none, and
/// DeviceError if it names another host and there is no ssh, or stand-in for it.
JobPlace hostfile_place(const std::string& path);

}  // namespace lockstep::jobs
