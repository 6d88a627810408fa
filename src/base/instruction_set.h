#pragma once

#include <span>

namespace lockstep {

/// What hot loops are compiled for (cmake/loops.cmake, base/simd.h).
enum class InstructionSet { avx512, avx2, portable };

/// "AVX-512", "AVX2", "portable".
const char* name_of(InstructionSet set);

/// Those that this processor has, the best first. The last is always `portable`.
std::span<const InstructionSet> instruction_sets();

/// The best that this processor has, or the one that the environment variable LOCKSTEP_INSTRUCTION_SET names,
/// for comparing them. Throws ConfigError if this processor does not have that.
InstructionSet chosen_instruction_set();

}  // namespace lockstep
