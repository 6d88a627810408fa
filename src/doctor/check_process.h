#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "control/descriptor.h"
#include "doctor/check.h"

namespace lockstep::doctor {

/// A check under way in a process of its own, which leads a process group, so that what it starts ends with
/// it. Ended with this object.
class CheckProcess {
 public:
  /// Throws IoError if no process can be started.
  CheckProcess(const Check& check, const Request& request);
  ~CheckProcess();
  CheckProcess(const CheckProcess&) = delete;

  /// To be waited for with poll(2): readable when receive() has something to do.
  int descriptor() const { return pipe_.get(); }
  Deadline deadline() const { return deadline_; }
  bool finished() const { return finished_; }
  /// Takes what the process has written, and notices its end.
  void receive();
  /// The limit has passed.
  void give_up();
  /// REQUIRES: finished().
  const std::vector<Verdict>& verdicts() const { return verdicts_; }

 private:
  void finish(std::vector<Verdict> verdicts);
  void end_process() noexcept;

  const Check* check_;
  pid_t pid_ = 0;
  control::Descriptor pipe_;
  Deadline deadline_;
  std::string text_;
  bool finished_ = false;
  std::vector<Verdict> verdicts_;
};

}  // namespace lockstep::doctor
