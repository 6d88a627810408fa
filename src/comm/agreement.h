#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gather_texts.h"
#include "lockstep/error.h"

namespace lockstep::comm {

/// A value that must be the same on all ranks before the first step.
struct AgreementField {
  std::string name;  ///< "config: trainer.seed: 7" differs as a whole line; "data", "program", ...
  std::string value;
  ExitCode code = ExitCode::usage;  ///< exit code of a difference: usage, or data
};

/// The value of a rank that has none, and accepts that of the others.
inline const std::string kAgreesWithAny = "(any)";

/// An error that all ranks throw in the same way, so that only rank 0 prints it.
struct CollectiveError : Error {
  using Error::Error;
};

/// "rank 3", "ranks 0, 1".
std::string rank_list(const std::vector<int>& ranks);

/// COLLECTIVE: every rank passes the error of its preparations, or null. If any rank failed, all throw a
/// CollectiveError that names the failed ranks and their messages. So no rank waits for one that gave up.
void agree_on_outcome(Communicator& communicator, std::exception_ptr outcome,
                      std::chrono::milliseconds timeout);

/// COLLECTIVE: compares the ranks' fields. If they differ, all throw a CollectiveError, which names the ranks
/// that differ from the majority, the field, and both values.
void agree_on_fields(Communicator& communicator, const std::vector<AgreementField>& fields,
                     std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
