#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

namespace lockstep::run {

/// Where each worker is, as one server sees it: between steps it asks, is answered or refused, and pushes
/// each range once; then it may ask again, or leave. Anything else throws InternalError: a push that comes
/// twice or in disorder, an ask that has overtaken a push, a message of someone who has gone.
class Attendance {
 public:
  Attendance(int workers, int ranges);

  void ask(int worker, int64_t step);
  void answer(int worker);
  void refuse(int worker);
  void push(int worker, int range, int64_t clock);
  void leave(int worker);
  /// Whether it was there until now.
  bool lose(int worker);

  bool asks(int worker) const;
  /// Steps that were answered; while it asks: the step that it asks for.
  int64_t steps(int worker) const;
  /// It was answered, and has not pushed all ranges.
  bool is_in_step(int worker) const;
  /// It was answered, and has not pushed this range.
  bool owes(int worker, int range) const;
  bool all_gone() const { return present_ == 0; }

  /// All that behaviour depends on, for tests that tell states apart.
  auto state() const { return std::tie(entries_, pushed_); }

 private:
  enum class Where { between_steps, asking, in_step, refused, gone };
  struct Entry {
    Where where = Where::between_steps;
    int missing = 0;  // pushes of this step
    int64_t steps = 0;
    auto state() const { return std::tie(where, missing, steps); }
  };

  Entry& entry(int worker);

  int ranges_;
  int present_;
  std::vector<Entry> entries_;
  std::vector<int64_t> pushed_;  // by worker and range
};

}  // namespace lockstep::run
