#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "program/program.h"

namespace lockstep::run {

/// Events around the waits of compute lanes: for communication, or for other lanes. They tell how long
/// compute waited only for communication. `place`, 0 or 1, distinguishes two iterations. Not thread-safe.
class TimedStands {
 public:
  /// `reports`: see program::report_instructions.
  TimedStands(const program::Program& program, const std::vector<int>& reports, device::Device& device);

  /// One that compute may stand still for: an iteration begins when the report of the one before is complete.
  bool is_communication(const program::Dependency& dependency) const;

  /// While an iteration is issued, for each instruction in program order: before and after its stream was
  /// made to wait for communication, or for the rest.
  void begin(int place);
  void before_waits(int place, int instruction, bool for_communication, device::Stream& stream);
  void after_waits(device::Stream& stream);
  /// All of it is issued.
  void end(int place, const std::vector<std::unique_ptr<device::Stream>>& streams);

  bool ready(int place) const;
  void synchronize(int place);
  /// REQUIRES: ready(place).
  double exposed_communication_ms(int place) const;

 private:
  struct Stand {
    int instruction;
    bool for_communication;
    std::unique_ptr<device::Event> begin, end;
  };

  const program::Program& program_;
  const std::vector<int>& reports_;
  std::vector<size_t> compute_lanes_;
  std::vector<Stand> stands_[2];
  std::vector<std::unique_ptr<device::Event>> ends_[2];  // of each of several compute lanes
  std::vector<Stand>::iterator next_;
  Stand* standing_ = nullptr;
};

}  // namespace lockstep::run
