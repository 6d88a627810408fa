#include "proof/every_mutant.h"

#include <gtest/gtest.h>

#include "program/golden_programs.h"

namespace lockstep::proof {

void expect_all_caught(const std::function<std::vector<Mutant>(const Programs&)>& mutate,
                       const std::vector<CheckFinding::Property>& reasons, int least,
                       const std::function<bool(const Mutant&)>& is_harmless) {
  int count = 0;
  for (const std::string& golden : program::golden_names()) {
    for (const Mutant& mutant : mutate(program::load_golden(golden))) {
      if (is_harmless && is_harmless(mutant)) continue;
      ++count;
      const auto findings = check_programs(mutant.programs);
      bool caught = false;
      for (const CheckFinding::Property reason : reasons) caught = caught || program::has(findings, reason);
      EXPECT_TRUE(caught) << golden << ", " << mutant.what << "\nfound:\n" << program::text_of(findings);
    }
  }
  EXPECT_GE(count, least);
}

bool is_alone(const Mutant& mutant) {
  return mutant.programs.size() == 1 || mutant.what.find("lane alone") != std::string::npos;
}

bool is_backward(const program::Instruction& i) {
  return i.kind == program::InstructionKind::backward || i.kind == program::InstructionKind::backward_input ||
         i.kind == program::InstructionKind::backward_weight;
}

}  // namespace lockstep::proof
