#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "program/program.h"
#include "run/actions.h"
#include "run/stamp_recorder.h"
#include "run/work_times.h"

namespace lockstep::run {

/// Times of instructions whose lanes are streams, and of the kernels in them, by events of the device: of the
/// iterations that a recorder wants, and of some others, which are a sample. For a recorder, the device's
/// clock is compared with the host's when its first iteration begins and when settle() is called, by an event
/// of an idle stream that the host waits for; times between are interpolated. `place`, 0 or 1, distinguishes
/// two iterations that are under way. Thread-safety: one thread, except part_took(), which the thread of an
/// instruction's lane calls before its stream gets to after().
class DeviceStamps {
 public:
  struct Options {
    StampRecorder* recorder = nullptr;  ///< null: nobody wants any
    bool samples = false;
    size_t nodes = 0;  ///< of the graph
  };
  /// All outlive it. `actions`: of the program.
  DeviceStamps(device::Device& device, const program::Program& program, const std::vector<Action>& actions,
               const Options& options);

  /// Once for each iteration, before it is issued. One that nobody wants leaves the calls below without
  /// effect.
  void begin_iteration(int place, const StepInputs& inputs);
  bool records(int place) const { return nth(places_, place).records; }
  /// Around an instruction's work, once its stream waits for nothing more.
  void before(int place, int instruction, device::Stream& stream);
  void after(int place, int instruction, device::Stream& stream);
  /// Around each kernel of an instruction (Action::parts), in its stream.
  void part_begins(int place, int instruction, size_t part, device::Stream& stream);
  void part_ends(int place, int instruction, size_t part, device::Stream& stream);
  /// The same if a thread of the host is the lane.
  void part_took(int place, int instruction, size_t part, Clock::time_point begin, Clock::time_point end);
  /// The iteration is complete: its times are read.
  void collect(int place);
  /// Hands what was collected to the recorder. REQUIRES: nothing is under way.
  void settle();

  const SampledTimes& sampled() const { return sampled_; }

 private:
  struct Timed {
    std::unique_ptr<device::Event> begin, end;
  };
  struct HostTimes {
    Clock::time_point begin, end;
  };
  /// An iteration under way.
  struct Place {
    bool records = false, for_recorder = false;
    StepInputs inputs;
    std::vector<Timed> instructions;
    std::vector<std::vector<Timed>> parts;           ///< by instruction; if the device is the lane
    std::vector<std::vector<HostTimes>> host_parts;  ///< likewise, if a thread is
  };
  /// The device's clock, counted from `origin_`, beside the host's.
  struct Comparison {
    double device_ms = 0, error_ms = 0;
    Clock::time_point host;
  };
  /// Since origin_.
  struct Times {
    double begin_ms = 0, end_ms = 0;
  };
  bool is_sampled(int64_t begun) const;
  Timed make_events();
  void make_room(Place& place);
  void begin_clock();
  Comparison compare();
  Times times_of(const Timed& timed) const;
  static double duration_of(const Timed& timed);
  void collect_parts(const Place& place, int instruction);
  void count(int instruction, double milliseconds);
  void count_part(const ActionPart& part, double milliseconds) {
    nth(sampled_.nodes_ms, part.node) += milliseconds;
  }

  device::Device& device_;
  const program::Program& program_;
  const std::vector<Action>& actions_;
  Options options_;
  std::unique_ptr<device::Stream> stream_;  // does nothing but compare clocks
  std::unique_ptr<device::Event> origin_, probe_;
  std::array<Place, 2> places_;
  int64_t begun_ = 0;  // iterations
  bool compared_ = false;
  Comparison begin_;
  struct Collected {
    Stamp stamp;  // with the host's times, if it has any; otherwise
    Times times;
    bool has_host_times;
  };
  std::vector<Collected> collected_;
  SampledTimes sampled_;
};

/// Enqueues an instruction without communication, and events around its kernels if their times are wanted.
/// `stamps`: null, or of its program. `given` is called when something was enqueued, and may wait, so that
/// the next kernel begins after it.
void start_timed(DeviceStamps* stamps, int place, int instruction, const Action& action,
                 device::Stream& stream, const StepInputs& inputs, const std::function<void()>& given);
/// The same if the calling thread is the lane, and carries out at once what `stream` is given.
void start_on_thread(DeviceStamps* stamps, int place, int instruction, const Action& action,
                     device::Stream& stream, const StepInputs& inputs);

}  // namespace lockstep::run
