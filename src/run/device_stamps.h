#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device/device.h"
#include "run/stamp_recorder.h"

namespace lockstep::run {

/// Times of instructions whose lanes are streams, by events of the device. The device's clock is compared
/// with the host's when the first iteration begins and when settle() is called, by an event of an idle stream
/// that the host waits for; times between are interpolated. `place`, 0 or 1, distinguishes two iterations
/// that are under way. Not thread-safe.
class DeviceStamps {
 public:
  /// All outlive it. `instructions`: of the program.
  DeviceStamps(device::Device& device, StampRecorder& recorder, size_t instructions);

  /// Once for each iteration, before it is issued. One that the recorder does not want leaves the calls below
  /// without effect.
  void begin_iteration(int place, uint64_t iteration);
  /// Around an instruction's work, once its stream waits for nothing more.
  void before(int place, int instruction, device::Stream& stream);
  void after(int place, int instruction, device::Stream& stream);
  /// The iteration is complete: its times are read.
  void collect(int place);
  /// Hands what was collected to the recorder. REQUIRES: nothing is under way.
  void settle();

 private:
  struct Timed {
    std::unique_ptr<device::Event> begin, end;
  };
  /// The device's clock, counted from `origin_`, beside the host's.
  struct Comparison {
    double device_ms = 0, error_ms = 0;
    Clock::time_point host;
  };
  Comparison compare();

  device::Device& device_;
  StampRecorder& recorder_;
  std::unique_ptr<device::Stream> stream_;  // does nothing but compare clocks
  std::unique_ptr<device::Event> origin_, probe_;
  std::array<std::vector<Timed>, 2> timed_;
  std::array<bool, 2> records_{};
  std::array<uint64_t, 2> iterations_{};
  bool compared_ = false;
  Comparison begin_;
  struct Collected {
    int instruction;
    uint64_t iteration;
    double begin_ms, end_ms;  // since origin_
  };
  std::vector<Collected> collected_;
};

}  // namespace lockstep::run
