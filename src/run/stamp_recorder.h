#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "ops/op.h"

namespace lockstep::run {

/// What a stamp is of: an instruction, from its start to its completion; one kernel call of an op within an
/// instruction; a time in which a rank's thread, or a lane, could do nothing but wait for an instruction. Of
/// a server in a session: the gradients of a push, from its announcement to their arrival; an update of a
/// range; an answer to a worker, until it is sent.
enum class StampKind : uint8_t { instruction, kernel, wait, landing, update, answer };

struct Stamp {
  StampKind kind = StampKind::instruction;
  ops::KernelPhase phase = ops::KernelPhase::forward;  ///< of a kernel
  int instruction = 0;                                 ///< of a server: the `serve` of the range
  int node = -1;                                       ///< of a kernel: the op in the graph
  int worker = -1;                                     ///< of landings, answers, and updates by one push
  uint64_t iteration = 0;                              ///< StepInputs::iteration, of the worker's step
  Clock::time_point begin, end;
};

/// Takes the times of some iterations of a program, into memory that is allocated before they begin.
/// Executors have a pointer to one, or null, so that a run without a recorder tests one pointer per
/// instruction. Thread-safety: add() and wants() from any thread while the recorder is open; stamps() from
/// any thread, and it returns what is complete by then; open() before the iterations begin.
class StampRecorder {
 public:
  /// Records `count` iterations from `first` on, and at most `capacity` stamps.
  void open(uint64_t first, uint64_t count, size_t capacity);
  bool wants(uint64_t iteration) const { return iteration - first_ < count_; }
  void add(const Stamp& stamp) noexcept;

  /// In the order in which they were added.
  std::vector<Stamp> stamps() const;
  /// Stamps for which there was no room.
  size_t dropped() const;

  /// How far the times of a device's work may be off from the host's clock, in ms; 0: the host took them
  /// itself.
  double device_error_ms() const { return device_error_ms_; }
  void set_device_error_ms(double error) { device_error_ms_ = error; }

 private:
  struct Entry {
    Stamp stamp;
    std::atomic<bool> complete{false};
  };
  uint64_t first_ = 0, count_ = 0;
  size_t capacity_ = 0;
  std::unique_ptr<Entry[]> entries_;
  std::atomic<size_t> next_{0};
  double device_error_ms_ = 0;
};

}  // namespace lockstep::run
