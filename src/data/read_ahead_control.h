#pragma once

#include <cstdint>

namespace lockstep::data {

/// How many threads read, and how many batches they keep ready.
struct ReadAheadSize {
  int threads = 1, depth = 4;
  bool operator==(const ReadAheadSize&) const = default;
};

/// Finds out how much reading ahead a training needs, from how long it waited for batches. Looks at eight
/// batches at a time. If waiting took more than 2 % of them, there are half as many threads again, at least
/// one more, and twice as many batches as threads, and two more, are kept ready. If all were ready all the
/// time, four times in a row, a thread comes to rest; if waiting then begins again, it works again, and comes
/// to rest twice as rarely. A pure function of what is noted.
class ReadAheadControl {
 public:
  /// REQUIRES: both are at least 1.
  ReadAheadControl(int most_threads, int most_depth);
  ReadAheadSize size() const { return size_; }
  /// A batch was taken after `waited_ms`, `period_ms` after the one before; `ready` others were ready then.
  ReadAheadSize note(double waited_ms, double period_ms, int ready);

 private:
  void grow();
  void look_back();

  const int most_threads_, most_depth_;
  ReadAheadSize size_;
  double waited_ms_ = 0, period_ms_ = 0;  // of the batches that are looked at together
  int batches_ = 0, least_ready_ = 0;
  int64_t calm_ = 0;         // times in a row that all were ready
  int64_t calm_needed_ = 4;  // before a thread comes to rest
  bool has_rested_ = false;  // the last change was that a thread came to rest
};

}  // namespace lockstep::data
