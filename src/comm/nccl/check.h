#pragma once

#include <nccl.h>

#include <source_location>

namespace lockstep::comm {

/// Throws CommError with NCCL's own words, the call's place and the host, unless NCCL accepted the call; what
/// is still in progress it has accepted.
void check(ncclResult_t status, std::source_location where = std::source_location::current());

}  // namespace lockstep::comm
