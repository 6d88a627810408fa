#include "train/faults/watched_communicator.h"

#include "train/faults/position.h"

namespace lockstep::train {
namespace {

constexpr std::chrono::hours kForever{24 * 365};

/// Says for as long as it lives that the training thread waits.
class Waiting {
 public:
  explicit Waiting(control::Progress& progress)
      : progress_(progress), before_(progress.at(control::Progress::kMainSlot)) {
    enter_phase(&progress, Phase::meet);
  }
  ~Waiting() {
    progress_.enter(control::Progress::kMainSlot, before_.activity, before_.program, before_.instruction);
  }
  Waiting(const Waiting&) = delete;

 private:
  control::Progress& progress_;
  control::Progress::Entry before_;
};

}  // namespace

void WatchedCommunicator::synchronize(device::Stream& stream, Deadline deadline) {
  const Waiting waiting(progress_);
  inner_->synchronize(stream, watched_ ? deadline_in(kForever) : deadline);
}

}  // namespace lockstep::train
