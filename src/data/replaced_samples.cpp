#include "data/replaced_samples.h"

#include "base/log.h"

namespace lockstep::data {

void ReplacedSamples::note(int64_t sample, const std::string& message) {
  constexpr size_t kMostWarnings = 10;
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!replaced_.insert(sample).second) return;
    count = replaced_.size();
  }
  if (count <= kMostWarnings) log_warning("replaced by the next sample: " + message);
}

std::vector<int64_t> ReplacedSamples::ascending() const {
  const std::lock_guard lock(mutex_);
  return {replaced_.begin(), replaced_.end()};
}

}  // namespace lockstep::data
