#pragma once

#include <array>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "control/connection.h"
#include "control/control_protocol.h"
#include "control/endpoint.h"
#include "control/timings.h"

struct pollfd;

namespace lockstep::control {

/// Admits ranks to rank 0 until all are connected. Each connection must send a whole hello with the job's
/// token in time; others are dropped without an answer. The resources of strangers are bounded: 64
/// connections of 56 bytes, of which the oldest is dropped for a new one, and a bounded share of each round.
/// Thread-safety: one thread.
class Admission {
 public:
  struct Arrival {
    int rank;
    Connection connection;
  };

  static constexpr size_t kMostStrangers = 64;
  static constexpr int kAcceptsPerRound = 128;

  /// REQUIRES: listeners do not block.
  Admission(std::vector<Listener> listeners, const JobToken& token, int size, const ControlTimings& timings);

  /// Adds what to wait for. If the system had no descriptor for a connection, listeners are omitted for a
  /// moment: they would stay readable, and the loop would spin.
  void add_to(std::vector<pollfd>& polled, Clock::time_point now) const;
  /// Accepts connections, reads available bytes, and welcomes missing ranks.
  std::vector<Arrival> serve(Clock::time_point now);
  /// The connection of an admitted rank has ended: it may come again.
  void expect_again(int rank) { nth(arrived_, rank) = false; }

  std::vector<int> missing() const;
  size_t strangers() const { return strangers_.size(); }
  int64_t turned_away() const { return turned_away_; }

 private:
  struct Stranger {
    Descriptor socket;
    Clock::time_point since;
    std::array<char, kHelloBytes> hello;
    size_t count = 0;
  };
  enum class Reading { waits, no_rank, whole };

  void accept_some(const Listener& listener, Clock::time_point now);
  Reading read_hello(Stranger& stranger) const;
  bool acceptable(const Hello& hello) const;
  void turn_away(Stranger& stranger);

  std::vector<Listener> listeners_;
  JobToken token_;
  ControlTimings timings_;
  std::vector<bool> arrived_;       // by rank
  std::deque<Stranger> strangers_;  // in the order of their coming
  Clock::time_point accepts_from_{};
  int64_t turned_away_ = 0;
};

}  // namespace lockstep::control
