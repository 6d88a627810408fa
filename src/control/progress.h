#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/index.h"

namespace lockstep::control {

/// What a thread of a rank is doing, for deadlines. `waiting`: for other ranks, so this rank is not at fault.
/// `idle`: nothing that could be late.
enum class Activity : uint8_t { idle, compute, input, storage, waiting };

/// The positions of a rank's threads, which its watchdog reads. Every slot has one writer, which makes one
/// store per instruction and reads no clock. Readers measure how long an entry stays unchanged. A reader that
/// sees an entry of one slot and then reads another slot sees there at least what the first entry's writer
/// knew. Thread-safety: one writer per slot; any thread may read.
class Progress {
 public:
  static constexpr int kSlots = 18;
  static constexpr int kMainSlot = 0;  ///< the training thread
  static constexpr int lane_slot(int lane) {
    return kMainSlot + 1 + lane;
  }                                       ///< of a program whose lanes are streams
  static constexpr int kWriterSlot = 17;  ///< the thread that writes checkpoints

  struct Entry {
    Activity activity = Activity::idle;
    int program = 0;  ///< meaning of both is the writer's; see ControlPlane::set_describer
    int instruction = 0;
    uint32_t changes = 0;  ///< how often the slot was written, so that two entries can be told apart
    bool operator==(const Entry&) const = default;
  };

  void enter(int slot, Activity activity, int program, int instruction) noexcept {
    auto& word = nth(slots_, slot);
    word.store(encode(word.load(std::memory_order_relaxed), activity, program, instruction),
               std::memory_order_release);
  }
  /// The word of a slot, for devices that write it themselves: the values that enter() would store, one after
  /// `before`.
  std::atomic<uint64_t>& word(int slot) noexcept { return nth(slots_, slot); }
  static uint64_t encode(uint64_t before, Activity activity, int program, int instruction) noexcept {
    return ((before >> 32) + 1) << 32 | static_cast<uint64_t>(activity) << 28 |
           static_cast<uint64_t>(program & 0xf) << 24 | (static_cast<uint64_t>(instruction) & 0xffffff);
  }
  Entry at(int slot) const noexcept {
    const uint64_t word = nth(slots_, slot).load(std::memory_order_acquire);
    return {static_cast<Activity>((word >> 28) & 0xf), static_cast<int>((word >> 24) & 0xf),
            static_cast<int>(word & 0xffffff), static_cast<uint32_t>(word >> 32)};
  }
  /// Number of complete optimizer steps, by which messages find the rank that is furthest behind.
  void set_step(int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kSlots> slots_{};
  std::atomic<int64_t> step_{0};
};

}  // namespace lockstep::control
