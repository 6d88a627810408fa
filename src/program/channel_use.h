#pragma once

#include <set>
#include <string>

#include "program/program.h"

namespace lockstep::program {

/// What a rank does in a group.
struct ChannelUse {
  std::set<int> sends_to, receives_from;  ///< ranks within the group, by exchanges and rings
  bool only_exchanges = true;             ///< of messages: nothing else

  void add(const ChannelUse& other);
};

/// Over all instructions of the rank's program in groups of this name.
ChannelUse channel_use(const Program& program, const std::string& group);

}  // namespace lockstep::program
