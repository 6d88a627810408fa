#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace lockstep::doctor {

// What all ranks have found about a job, and how to interpret it: pure functions.

/// A rank's report about itself.
struct RankFacts {
  std::string host;     ///< as messages call it
  int host_number = 0;  ///< ranks of one host have the same
  std::string program;  ///< its file
  std::string binary;   ///< hash of that
  std::string mpi, arithmetic, gpu_libraries;
  int gpus = 0;                              ///< that it sees
  double clock = 0;                          ///< seconds since 1970, all at the same moment
  double work_rate = 0;                      ///< of a fixed piece of arithmetic, per second
  std::vector<std::string> launch_warnings;  ///< what makes its processes slow
  std::vector<Finding> host_findings;
};
std::string encode(const RankFacts& facts);
RankFacts decode_rank_facts(const std::string& text);

using Ranks = std::vector<RankFacts>;

Finding judge_ranks(const Ranks& ranks);
/// Each host's own checks: the problems, with the host's name, or one line if there are none.
std::vector<Finding> judge_hosts(const Ranks& ranks);
Finding judge_binding(const Ranks& ranks);
Finding judge_programs(const Ranks& ranks);
Finding judge_mpi_libraries(const Ranks& ranks);
Finding judge_arithmetic(const Ranks& ranks);
Finding judge_gpus_of_ranks(const Ranks& ranks);
Finding judge_clocks(const Ranks& ranks);
Finding judge_speed(const Ranks& ranks);

/// Half of a message's round trip between two ranks.
struct Latency {
  int first = 0, second = 0;
  double seconds = 0;
};
Finding judge_latencies(const Ranks& ranks, const std::vector<Latency>& latencies);

/// From one host to another, or within one, as measured between one rank of each.
struct LinkFacts {
  int from = 0, to = 0;  ///< ranks
  double bytes_per_second = 0;
  std::string interface;  ///< that the bytes took; empty: none, they stayed in memory
  int speed_mbit = 0;     ///< as that interface says; 0: it does not
};
/// One line for each link; if there are many, one line that names the slowest.
std::vector<Finding> judge_links(const Ranks& ranks, const std::vector<LinkFacts>& links);

struct AllReduceFacts {
  int64_t size_bytes = 0;
  double seconds = 0;   ///< of one
  std::string backend;  ///< "mpi", "shared"
  std::string
      shm_problem;  ///< why ranks of one host do not share memory; empty: they do, or have several hosts
};
Finding judge_all_reduce(const Ranks& ranks, const AllReduceFacts& facts);

}  // namespace lockstep::doctor
