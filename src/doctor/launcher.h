#pragma once

#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

struct MpiFacts {
  std::string mpirun;   ///< what `mpirun --version` says; empty: there is none on PATH
  std::string library;  ///< what the MPI that this program is linked with says
};
Verdict judge_mpi(const MpiFacts& facts);

/// A trial: two processes that do nothing.
struct MpirunFacts {
  bool found = false;  ///< on PATH
  int code = 0;
  double seconds = 0;
  std::string output;
  std::vector<std::string> flags;  ///< that trainings want here, and the environment does not give
};
Verdict judge_mpirun(const MpirunFacts& facts);

struct RootFacts {
  int user = 0;            ///< 0: root
  bool confirmed = false;  ///< both variables that Open MPI wants to see are set
};
Verdict judge_root(const RootFacts& facts);

std::vector<Verdict> look_at_mpi(const Request& request);
std::vector<Verdict> look_at_mpirun(const Request& request);
std::vector<Verdict> look_at_root(const Request& request);

}  // namespace lockstep::doctor
