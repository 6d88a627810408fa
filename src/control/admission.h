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

/// The open door of rank 0 until all ranks are there. Whoever comes has to show a whole hello with the job's
/// token in time; everybody else is dropped without a word. What strangers can take up is bounded: 64
/// connections of 56 bytes, the oldest of which goes when another comes, and a bounded share of each round.
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

  /// What to wait for. Listeners are left out for a moment after the system had no descriptor for another
  /// connection: they would stay readable, and the loop would spin.
  void add_to(std::vector<pollfd>& polled, Clock::time_point now) const;
  /// Accepts and reads what is there, and welcomes ranks that were missing.
  std::vector<Arrival> serve(Clock::time_point now);
  /// The connection of a rank that had arrived has ended: it may come again.
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
