#include "comm/measure.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/statistics.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kShortBytes = 8;
constexpr int kRoundTrips = 20;  // so that leaving a barrier apart counts little
constexpr int kFewest = 3, kMost = 2001;

double seconds_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  call();
  return 1e-3 * milliseconds_between(begin, Clock::now());
}

/// One measurement that all ranks make together.
class Turns {
 public:
  Turns(Communicator& world, device::Stream& stream) : world_(world), stream_(stream) {}

  void wait() { world_.synchronize(stream_, Deadline::max()); }
  void exchange(const std::vector<Transfer>& transfers) {
    world_.exchange(transfers, stream_);
    wait();
  }
  /// The longest of all ranks.
  double slowest(double seconds) {
    world_.all_reduce(&seconds, 1, DType::float64, ReduceOp::max, stream_);
    wait();
    return seconds;
  }
  /// Median of turns, each after a barrier, that take about `seconds` together.
  double median_of(const std::function<void()>& turn, double seconds) {
    turn();  // connects, and maps pages
    const double once = once_more(turn);
    const int turns =
        static_cast<int>(std::clamp(seconds / std::max(once, 1e-9), double{kFewest}, double{kMost}));
    std::vector<double> times;
    for (int i = 0; i < turns; ++i) times.push_back(once_more(turn));
    return median(times);
  }

 private:
  double once_more(const std::function<void()>& turn) {
    world_.barrier(stream_);
    wait();
    return slowest(seconds_of(turn));
  }

  Communicator& world_;
  device::Stream& stream_;
};

}  // namespace

std::vector<PairTimes> measure_pairs(Communicator& world, device::Stream& stream,
                                     const std::vector<int>& peers, const MeasureOptions& options) {
  const int64_t bytes = options.long_message_bytes;
  std::vector<char> out(static_cast<size_t>(bytes), 1), in(static_cast<size_t>(bytes), 0);
  Turns turns(world, stream);
  std::vector<PairTimes> pairs;
  for (const int peer : peers) {
    const bool first = world.rank() == 0, takes_part = first || world.rank() == peer;
    const int other = first ? peer : 0;
    const Transfer send{Transfer::Direction::send, other, out.data(), bytes};
    const Transfer receive{Transfer::Direction::receive, other, in.data(), bytes};
    Transfer short_send = send, short_receive = receive;
    short_send.size_bytes = short_receive.size_bytes = kShortBytes;
    PairTimes times{.peer = peer};
    times.latency = turns.median_of(
                        [&] {
                          for (int i = 0; takes_part && i < kRoundTrips; ++i) {
                            turns.exchange({first ? short_send : short_receive});
                            turns.exchange({first ? short_receive : short_send});
                          }
                        },
                        options.seconds) /
                    (2 * kRoundTrips);
    times.one_way_per_byte = turns.median_of(
                                 [&] {
                                   if (takes_part) turns.exchange({first ? send : receive});
                                 },
                                 options.seconds) /
                             static_cast<double>(bytes);
    times.both_ways_per_byte = turns.median_of(
                                   [&] {
                                     if (takes_part) turns.exchange({send, receive});
                                   },
                                   options.seconds) /
                               static_cast<double>(bytes);
    pairs.push_back(times);
  }
  return pairs;
}

std::vector<SumTime> measure_sums(Communicator& world, device::Stream& stream,
                                  const std::vector<int64_t>& sizes_bytes, const MeasureOptions& options) {
  Turns turns(world, stream);
  std::vector<SumTime> sums;
  for (const int64_t bytes : sizes_bytes) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<float> data(static_cast<size_t>(count), 0.0f);
    const double seconds = turns.median_of(
        [&] {
          world.all_reduce(data.data(), count, DType::float32, ReduceOp::sum, stream);
          turns.wait();
        },
        options.seconds);
    sums.push_back({.bytes = bytes, .seconds = seconds});
  }
  return sums;
}

double measure_addition() {
  constexpr size_t kCount = 4 << 20;  // more than caches hold
  std::vector<float> sum(kCount, 1.0f), addend(kCount, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i)
    times.push_back(seconds_of([&] {
      for (size_t e = 0; e < kCount; ++e) sum[e] += addend[e];
      addend[0] = sum[kCount - 1];  // so that nothing can be left out
    }));
  return median(times) / static_cast<double>(kCount * sizeof(float));
}

double measure_copying(int64_t bytes) {
  constexpr int kMeasurements = 9;
  constexpr int64_t kBytesOfOne = 32 << 20;  // some milliseconds
  const auto size = static_cast<size_t>(bytes);
  std::vector<char> from(size, 1), to(size);
  const int64_t repetitions = std::max<int64_t>(kBytesOfOne / bytes, 1);
  double best = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    const double seconds = seconds_of([&] {
      for (int64_t r = 0; r < repetitions; ++r) {
        std::memcpy(to.data(), from.data(), size);
        from[0] = static_cast<char>(to[size - 1] + 1);  // so that nothing can be left out
      }
    });
    best = std::max(best, 2.0 * static_cast<double>(bytes * repetitions) / std::max(seconds, 1e-9));
  }
  return best;
}

}  // namespace lockstep::comm
