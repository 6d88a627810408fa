#pragma once

#include <chrono>

#include "base/clock.h"
#include "comm/communicator.h"

namespace lockstep::train {

/// Work of rank 0 that the others wait for, for as long as it gets on:
///
///     rank 0   works, gets_on(), works, gets_on(), ...  done()
///     others   done() ......................................    each meeting has a limit of its own
class LongWork {
 public:
  struct Options {
    std::chrono::milliseconds between_words = std::chrono::seconds(30);
    std::chrono::milliseconds patience = std::chrono::minutes(5);  ///< of a rank, from one word to the next
  };

  LongWork(comm::Communicator& world, const Options& options) : world_(world), options_(options) {}

  /// On rank 0, as often as it likes. COLLECTIVE with the others' done() if the last word is long ago.
  void gets_on();
  /// COLLECTIVE. The others' ends after rank 0's has begun.
  void done();

 private:
  comm::Communicator& world_;
  Options options_;
  Clock::time_point last_word_ = Clock::now();
};

}  // namespace lockstep::train
