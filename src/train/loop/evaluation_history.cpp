#include "train/loop/evaluation_history.h"

namespace lockstep::train {

bool EvaluationHistory::add(int64_t step, double loss) {
  if (step == best_step) return false;
  // Also false for what is no number.
  if (loss < best_loss || (best_step < 0 && loss == loss)) {
    *this = {.best_step = step, .best_loss = loss, .since_best = 0};
    return true;
  }
  ++since_best;
  return false;
}

}  // namespace lockstep::train
