#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

// Processor, clock and limits of processes. Each check gathers facts; judge_* functions, which are pure,
// interpret them.

struct ProcessorFacts {
  std::string model;
  std::vector<std::string> built_for;  ///< instruction sets that the kernels were compiled for
  std::vector<std::string> has;        ///< of those that lockstep may be compiled for
};
ProcessorFacts processor_facts();
Finding judge_processor(const ProcessorFacts& facts);

struct CoreFacts {
  int host = 1;     ///< that are there
  int allowed = 1;  ///< that this process may run on
  int quota = 0;    ///< whose time its control group allows; 0: all
};
Finding judge_cores(const CoreFacts& facts);

struct ClockFacts {
  int64_t seconds_since_1970 = 0;
  std::string source;  ///< as the kernel calls it; empty: unknown
  bool synchronized = false;
};
Finding judge_clock(const ClockFacts& facts);

struct OpenFilesFacts {
  int64_t limit = 0, hard_limit = 0;
};
Finding judge_open_files(const OpenFilesFacts& facts);

std::vector<Finding> look_at_processor(const Request& request);
std::vector<Finding> look_at_cores(const Request& request);
std::vector<Finding> look_at_clock(const Request& request);
std::vector<Finding> look_at_open_files(const Request& request);

}  // namespace lockstep::doctor
