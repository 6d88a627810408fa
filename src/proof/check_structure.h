#pragma once

#include <cstdint>
#include <span>

#include "proof/check_world.h"

namespace lockstep::proof {

inline constexpr auto kStructure = CheckFinding::Property::structure;

/// The structure of programs, which all other checks rely on. Each function appends what it finds.

/// What a program lists before its instructions: names, groups, buffers and where parameters lie.
void check_declarations(const program::Program& program, int rank, int world_size, Findings& findings);
/// One program's instructions, each by itself. Declarations need not be sound.
void check_instructions(const program::Program& program, int rank, Findings& findings);
/// What the programs say in common. REQUIRES: each one is sound by itself.
void check_agreement(std::span<const program::Program> programs, Findings& findings);

/// Sizes and offsets end here, so that sums of two and positions in float32 bytes fit into 64 bits: an
/// exbibyte.
inline constexpr int64_t kMostBytes = int64_t{1} << 60;
inline bool is_sound(int64_t bytes) { return bytes >= 0 && bytes <= kMostBytes; }

}  // namespace lockstep::proof
