#pragma once

#include <chrono>
#include <string>

#include "comm/communicator.h"

namespace lockstep::train {

/// COLLECTIVE: makes sure that `directory` is one folder, which all ranks can write to: rank 0 leaves a file
/// of a random name there, which the others must find, and leave one of their own beside. Network file
/// systems may take their time to show it: `patience`. `host` is the name of this rank's. Throws
/// CollectiveError on all ranks, naming the ranks and hosts that see another folder or must not write, and
/// what to do. Nothing stays behind. REQUIRES: rank 0's folder exists.
void check_shared_directory(comm::Communicator& world, const std::string& directory, const std::string& host,
                            std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace lockstep::train
