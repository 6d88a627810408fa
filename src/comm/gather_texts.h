#pragma once

#include <chrono>
#include <functional>
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

/// COLLECTIVE: hands every rank's text to `take` on rank 0, one after the other by rank, so that no rank
/// needs memory for more than its own text and one other. `take` must not throw: others wait. It is not
/// called on other ranks.
void collect_texts(Communicator& world, std::string own, std::chrono::milliseconds timeout,
                   const std::function<void(std::string text)>& take);

}  // namespace lockstep::comm
