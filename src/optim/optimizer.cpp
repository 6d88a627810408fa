#include "optim/optimizer.h"

#include <algorithm>

#include "base/ensure.h"
#include "optim/formulas.h"

namespace lockstep::optim {

ParameterRates rates_of(const OptimizerOptions& options, const GroupRates& groups, std::string_view parameter,
                        bool is_norm_or_bias) {
  if (const auto group = groups.find(parameter); group != groups.end()) return group->second;
  return {.weight_decay = is_norm_or_bias && !options.decay_norm_and_bias ? 0 : options.weight_decay};
}

bool measures_parameters(const OptimizerOptions& options) {
  return options.kind == OptimizerKind::lars || options.kind == OptimizerKind::lamb ||
         options.adaptive_clip.limit > 0;
}

int proposed_slots(const OptimizerOptions& options) { return options.kind == OptimizerKind::lamb ? 2 : 0; }

bool is_scaled(const OptimizerOptions& options, const ParameterRates& rates, bool is_norm_or_bias) {
  switch (options.kind) {
    case OptimizerKind::lars:
      return !is_norm_or_bias;
    case OptimizerKind::lamb:
      return !is_norm_or_bias && (rates.weight_decay != 0 || options.adapts_without_decay);
    default:
      return options.adaptive_clip.limit > 0 && rates.clips;
  }
}

float average_gain(const AverageOptions& options, int64_t updates) {
  return updates <= std::max<int64_t>(1, options.start_step) ? 1 : static_cast<float>(1 - options.decay);
}

int state_slots(const OptimizerOptions& options) {
  return visit_formula(options, []<class Formula, int slots> { return slots; });
}

std::string_view state_slot_name(const OptimizerOptions& options, int slot, const MatrixSize& matrix) {
  ensure(slot >= 0 && slot < state_slots(options), "the optimizer has no such state slot");
  if (options.average.enabled && slot + 1 == state_slots(options)) return "ema";
  if (options.kind == OptimizerKind::sgd) return "momentum";
  // It holds the last change, with its rate and sign, where SGD's holds gradients: neither may go on as the
  // other.
  if (options.kind == OptimizerKind::lars) return "velocity";
  // Adam must not go on with it: beside a full mean, squares of 0 would make one huge step.
  if (options.kind == OptimizerKind::muon && matrix.is_matrix())
    return slot == 0 ? "muon_mean" : "muon_unused";
  return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

}  // namespace lockstep::optim
