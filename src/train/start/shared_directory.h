#pragma once

#include <chrono>
#include <string>

#include "comm/communicator.h"

namespace lockstep::train {

/// COLLECTIVE: checks that `directory` is the same folder for all ranks, and that all can write to it. Rank 0
/// makes a file with a random name, which the others must find, and beside which they make files of their
/// own. `patience`: how long a network file system may take to show it. `host`: the name of this rank's host.
/// Throws CollectiveError on all ranks, which names the ranks and hosts that see another folder or cannot
/// write, and says what to do. No file stays behind. REQUIRES: rank 0's folder exists.
void check_shared_directory(comm::Communicator& world, const std::string& directory, const std::string& host,
                            std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace lockstep::train
