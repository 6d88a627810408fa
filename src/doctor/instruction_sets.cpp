#include "doctor/instruction_sets.h"

namespace lockstep::doctor {

InstructionSets built_instruction_sets() {
  InstructionSets sets{false, false, false};
#ifdef __AVX2__
  sets.avx2 = true;
#endif
#ifdef __FMA__
  sets.fma = true;
#endif
#ifdef __AVX512F__
  sets.avx512f = true;
#endif
  return sets;
}

}  // namespace lockstep::doctor
