#pragma once

namespace lockstep::doctor {

/// A plain struct without the standard library: its source is compiled for the kernels' processor, and
/// linkers would merge functions that it shares with other sources.
struct InstructionSets {
  bool avx2, fma, avx512f;
};
/// The instruction sets for which the kernels of this program were compiled.
InstructionSets built_instruction_sets();

}  // namespace lockstep::doctor
