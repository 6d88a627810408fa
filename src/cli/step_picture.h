#pragma once

#include <span>
#include <string>

#include "plan/program_timeline.h"
#include "program/program.h"

namespace lockstep::cli {

/// Throws ConfigError for more ranks than anybody could look at.
void check_can_be_drawn(int ranks);

/// A drawing (SVG, complete in itself) of one iteration of all ranks' programs: a row for each lane that does
/// something, a box for each instruction that takes time, which says what it is where it is pointed at.
/// Throws ConfigError likewise, and for too many boxes.
std::string step_picture(const std::string& title, std::span<const program::Program> programs,
                         const plan::ProgramTimeline& timeline);

}  // namespace lockstep::cli
