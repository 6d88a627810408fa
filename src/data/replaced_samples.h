#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace lockstep::data {

/// Samples that were found damaged when they were read, and are replaced by the next whole one, with
/// `on_damage: SKIP`. Any thread may call it.
class ReplacedSamples {
 public:
  /// Warns of the first few. `message`: what is wrong with it, and where.
  void note(int64_t sample, const std::string& message);
  std::vector<int64_t> ascending() const;

 private:
  mutable std::mutex mutex_;
  std::set<int64_t> replaced_;
};

/// More damaged samples in a row are no damage, but another data set.
inline constexpr int64_t kMostReplacedInARow = 100;

}  // namespace lockstep::data
