#pragma once

#include <source_location>
#include <string_view>

namespace lockstep {

/// Throws InternalError naming the place if `condition` is false: for a mistake of ours, in every build
/// type. Not in include/lockstep, whose headers are read by compilers without std::source_location, too.
void ensure(bool condition, std::string_view message,
            std::source_location where = std::source_location::current());

}  // namespace lockstep
