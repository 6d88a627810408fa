#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::data {

/// A sample that cannot be read, and why.
struct SampleDamage {
  std::string file;     ///< "" if it is in no file, or in several
  int64_t sample = -1;  ///< its number, or that of a file in a list; -1: it is not known
  int64_t byte = -1;    ///< of the file; -1: it is not known
  std::string what;     ///< what was expected and found
  bool operator==(const SampleDamage&) const = default;
};

/// Damage that is found by several threads.
class FoundDamage {
 public:
  void add(SampleDamage damage) {
    const std::lock_guard lock(mutex_);
    found_.push_back(std::move(damage));
  }
  std::vector<SampleDamage> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(found_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<SampleDamage> found_;
};

}  // namespace lockstep::data
