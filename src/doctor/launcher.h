#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

struct MpiFacts {
  std::string mpirun;   ///< what `mpirun --version` says; empty: there is none on PATH
  std::string library;  ///< what the MPI that this program is linked with says
};
Finding judge_mpi(const MpiFacts& facts);

/// A trial: two processes that do nothing.
struct MpirunFacts {
  bool found = false;  ///< on PATH
  int code = 0;
  double seconds = 0;
  std::string output;
  std::vector<std::string> flags;  ///< that trainings want here, and the environment does not give
  std::string host;                ///< its name
  std::map<std::string, std::string> missing = {};  ///< missing_for_mpirun()
};
Finding judge_mpirun(const MpirunFacts& facts);

/// Variables of the environment that are not set and without which Open MPI's mpirun crashes or ends at once,
/// with values that do.
std::map<std::string, std::string> missing_for_mpirun();
/// Open MPI 4's mpirun crashes if a host's name begins with more letters and hyphens than these: it copies
/// what stands before the first digit or dot into a place of a fixed size.
inline constexpr size_t kMostLettersOfHost = 56;
size_t letters_at_begin(std::string_view host);

struct RootFacts {
  int user = 0;            ///< 0: root
  bool confirmed = false;  ///< both variables that Open MPI wants to see are set
};
Finding judge_root(const RootFacts& facts);

std::vector<Finding> look_at_mpi(const Request& request);
std::vector<Finding> look_at_mpirun(const Request& request);
std::vector<Finding> look_at_root(const Request& request);

}  // namespace lockstep::doctor
