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

/// One thing that all ranks must have in common before the first step.
struct AgreementField {
  std::string name;  ///< "config: trainer.seed: 7" differs as a whole line; "data", "program", ...
  std::string value;
  ExitCode code = ExitCode::usage;  ///< what a difference means: usage, or data
};

/// The value of a rank that has none of its own, and takes the others'.
inline const std::string kAgreesWithAny = "(any)";

/// An error that every rank throws alike, so that it is enough for rank 0 to print it.
struct CollectiveError : Error {
  using Error::Error;
};

/// "rank 3", "ranks 0, 1".
std::string rank_list(const std::vector<int>& ranks);

/// COLLECTIVE: every rank says whether its own preparations went well (null) or what was thrown. Where any
/// failed, all throw a CollectiveError that names the ranks and their messages; so nobody waits for a rank
/// that gave up.
void agree_on_outcome(Communicator& communicator, std::exception_ptr outcome,
                      std::chrono::milliseconds timeout);

/// COLLECTIVE: compares the ranks' fields. If they differ, all throw a CollectiveError naming the ranks
/// that differ from the majority, the field, and both values.
void agree_on_fields(Communicator& communicator, const std::vector<AgreementField>& fields,
                     std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
