#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// How long ranks wait for each other when all exchange texts and none computes.
inline constexpr std::chrono::minutes kPatience{5};

/// COLLECTIVE: returns every rank's text, by rank. Throws CommError if one of its two exchanges takes longer
/// than `timeout`.
std::vector<std::string> gather_texts(Communicator& world, const std::string& own,
                                      std::chrono::milliseconds timeout);

/// COLLECTIVE: the same on rank 0 alone; other ranks, which need memory for their own text only, get nothing.
std::vector<std::string> collect_texts(Communicator& world, const std::string& own,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
