#include "base/ensure.h"
#include "optim/formulas.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

int state_slots(const OptimizerOptions& options) {
  return visit_formula(options, []<class Formula, int slots> { return slots; });
}

std::string_view state_slot_name(const OptimizerOptions& options, int slot) {
  ensure(slot >= 0 && slot < state_slots(options), "the optimizer has no such state slot");
  if (options.kind == OptimizerKind::sgd) return "momentum";
  return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

}  // namespace lockstep::optim
