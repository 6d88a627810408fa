#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// How long ranks wait for each other where all have something to say, and none computes.
inline constexpr std::chrono::minutes kPatience{5};

/// COLLECTIVE: every rank's text, by rank. Each of the two exchanges that it takes may last for `timeout`;
/// throws CommError after that.
std::vector<std::string> gather_texts(Communicator& world, const std::string& own,
                                      std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
