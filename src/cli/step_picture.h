#pragma once

#include <span>
#include <string>

#include "plan/program_timeline.h"
#include "program/program.h"

namespace lockstep::cli {

/// Throws ConfigError for more ranks than a picture can show.
void check_can_be_drawn(int ranks);

/// A self-contained SVG drawing of one iteration of all ranks' programs: a row for each lane that does
/// something, a box for each instruction that takes time. Pointing at a box shows its instruction. Throws
/// ConfigError likewise, and for too many boxes.
std::string step_picture(const std::string& title, std::span<const program::Program> programs,
                         const plan::ProgramTimeline& timeline);

}  // namespace lockstep::cli
