#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "control/descriptor.h"
#include "doctor/check.h"

namespace lockstep::doctor {

/// A check that runs in a separate process. The process leads a process group, so that everything that it
/// starts ends with it. It ends with this object.
class CheckProcess {
 public:
  /// Throws IoError if no process can be started.
  CheckProcess(const Check& check, const Request& request);
  ~CheckProcess();
  CheckProcess(const CheckProcess&) = delete;

  /// For poll(2): readable when receive() has something to do.
  int descriptor() const { return pipe_.get(); }
  Deadline deadline() const { return deadline_; }
  bool finished() const { return finished_; }
  /// Reads what the process has written, and notices its end.
  void receive();
  /// The limit has passed.
  void give_up();
  /// REQUIRES: finished().
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  void finish(std::vector<Finding> findings);
  void end_process() noexcept;

  const Check* check_;
  pid_t pid_ = 0;
  control::Descriptor pipe_;
  Deadline deadline_;
  std::string text_;
  bool finished_ = false;
  std::vector<Finding> findings_;
};

}  // namespace lockstep::doctor
