#include "comm/clock_offset.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <vector>

#include "base/hash.h"
#include "device/device.h"

namespace lockstep::comm {
namespace {

constexpr int kRounds = 32;

double now_us() { return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count(); }

class Rounds {
 public:
  Rounds(Communicator& world, std::chrono::milliseconds timeout)
      : world_(world),
        timeout_(timeout),
        device_(device::make_cpu_device()),
        stream_(device_->create_stream("clocks")) {}

  device::Stream& stream() { return *stream_; }
  void wait() { world_.synchronize(*stream_, deadline_in(timeout_)); }

  void answer(int peer) {
    for (int round = 0; round < kRounds; ++round) {
      double question = 0;
      pass({Transfer::Direction::receive, peer, &question, sizeof question});
      std::array<double, 2> stamps{now_us(), 0};
      stamps[1] = now_us();
      pass({Transfer::Direction::send, peer, stamps.data(), sizeof stamps});
    }
  }

  ClockOffset ask() {
    ClockOffset best;
    for (int round = 0; round < kRounds; ++round) {
      double sent = now_us();
      pass({Transfer::Direction::send, 0, &sent, sizeof sent});
      std::array<double, 2> stamps{};
      pass({Transfer::Direction::receive, 0, stamps.data(), sizeof stamps});
      const double received = now_us();
      const double error = ((received - sent) - (stamps[1] - stamps[0])) / 2;
      if (round > 0 && error >= best.error_us) continue;
      best = {.offset_us = ((stamps[0] - sent) + (stamps[1] - received)) / 2, .error_us = error};
    }
    return best;
  }

 private:
  void pass(const Transfer& transfer) {
    world_.exchange({&transfer, 1}, *stream_);
    wait();
  }

  Communicator& world_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

}  // namespace

std::string clock_identity() {
  // The steady clock counts from the boot of a kernel, and a namespace of time may shift it.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/time", space.data(), space.size());
  return boot.empty() ? "" : boot + std::string(space.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

ClockOffset measure_clock_offset(Communicator& world, const std::string& identity,
                                 std::chrono::milliseconds timeout) {
  Rounds rounds(world, timeout);
  std::vector<uint64_t> clocks(static_cast<size_t>(world.size()));
  clocks[static_cast<size_t>(world.rank())] = identity.empty() ? 0 : hash64(identity);
  world.all_gather(clocks.data(), sizeof(uint64_t), rounds.stream());
  rounds.wait();
  ClockOffset own;
  for (int rank = 1; rank < world.size(); ++rank) {
    const uint64_t clock = clocks[static_cast<size_t>(rank)];
    if (clock != 0 && clock == clocks[0]) continue;
    if (world.rank() == 0) rounds.answer(rank);
    if (world.rank() == rank) own = rounds.ask();
  }
  return own;
}

}  // namespace lockstep::comm
