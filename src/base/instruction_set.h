#pragma once

#include <span>

namespace lockstep {

/// What hot loops are compiled for (cmake/loops.cmake, base/simd.h).
enum class InstructionSet { avx512, avx2, portable };

/// "AVX-512", "AVX2", "portable".
const char* name_of(InstructionSet set);

/// Those that this processor has and hot loops were compiled for, the best first: at least one. The last is
/// `portable`, unless they were compiled for one alone (LOCKSTEP_LOOPS=NATIVE). Throws ConfigError if the
/// processor does not have that one.
std::span<const InstructionSet> instruction_sets();

/// The best that this processor has, or the one that the environment variable LOCKSTEP_INSTRUCTION_SET names,
/// for comparing them. Throws ConfigError if that is not among them.
InstructionSet chosen_instruction_set();

}  // namespace lockstep
