#pragma once

#include <vector>

#include "comm/communicator.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Averages begin at the parameters: writes those that this rank has. REQUIRES: the optimizer keeps averages.
void begin_averages(Worker& worker);

/// Puts moving averages in the places of parameters, for an evaluation, and parameters back after it. The
/// copy of the parameters is in the host's memory.
class AveragedParameters {
 public:
  /// COLLECTIVE: from now on the worker's parameters are the averages. REQUIRES: the optimizer keeps
  /// averages.
  AveragedParameters(Worker& worker, comm::Communicator& world);
  /// Restores, so that whoever goes on after a failed evaluation has the parameters.
  ~AveragedParameters();
  AveragedParameters(const AveragedParameters&) = delete;
  /// The parameters are what they were.
  void restore();

 private:
  struct Kept {
    HeldParameter held;
    std::vector<float> values;
  };
  Worker& worker_;
  std::vector<Kept> kept_;
};

}  // namespace lockstep::train
