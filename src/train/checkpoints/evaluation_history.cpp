#include "train/checkpoints/evaluation_history.h"

#include <cmath>

namespace lockstep::train {

bool EvaluationHistory::add(int64_t step, double loss) {
  if (step == last_step) return false;
  last_step = step;
  if (std::isfinite(loss) && (best_step < 0 || loss < best_loss)) {
    best_step = step;
    best_loss = loss;
    since_best = 0;
    return true;
  }
  ++since_best;
  return false;
}

}  // namespace lockstep::train
