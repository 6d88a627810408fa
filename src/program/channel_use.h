#pragma once

#include <set>
#include <string>

#include "program/program.h"

namespace lockstep::program {

/// A rank's communication in a group.
struct ChannelUse {
  std::set<int> sends_to, receives_from;  ///< ranks within the group, by exchanges and rings
  bool only_exchanges = true;             ///< all communication is exchanges of messages

  void add(const ChannelUse& other);
};

/// Over all instructions of the rank's program in groups of this name.
ChannelUse channel_use(const Program& program, const std::string& group);

}  // namespace lockstep::program
