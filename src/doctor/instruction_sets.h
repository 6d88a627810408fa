#pragma once

namespace lockstep::doctor {

/// Plain, and without the standard library: its source is compiled for the kernels' processor, and linkers
/// would merge what it shares with others.
struct InstructionSets {
  bool avx2, fma, avx512f;
};
/// What the kernels of this program were compiled for.
InstructionSets built_instruction_sets();

}  // namespace lockstep::doctor
