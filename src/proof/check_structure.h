#pragma once

#include <cstdint>
#include <span>

#include "proof/check_world.h"

namespace lockstep::proof {

inline constexpr auto kStructure = CheckFinding::Property::structure;

/// The structure of programs, which all other checks rely on. Each function appends what it finds.

/// Checks what a program lists before its instructions: names, groups, buffers and places of parameters.
void check_declarations(const program::Program& program, int rank, int world_size, Findings& findings);
/// Checks one program's instructions, each by itself. Declarations need not be sound.
void check_instructions(const program::Program& program, int rank, Findings& findings);
/// Checks what all programs must have in common. REQUIRES: each program is sound by itself.
void check_agreement(std::span<const program::Program> programs, Findings& findings);

/// The limit of sizes and offsets, an exbibyte, so that sums of two and positions in float32 bytes fit into
/// 64 bits.
inline constexpr int64_t kMostBytes = int64_t{1} << 60;
inline bool is_sound(int64_t bytes) { return bytes >= 0 && bytes <= kMostBytes; }

}  // namespace lockstep::proof
