#include "run/patience.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep::run {
namespace {

/// What comes that soon is worth a core.
constexpr std::chrono::microseconds kAwake{200}, kLeastAwake{10};
/// Of waits that last longer, an eighth more is hardly felt; of shorter ones, and of steps that are all waits
/// of that kind, it is.
constexpr std::chrono::microseconds kLong{2000};

}  // namespace

Patience::Patience(std::chrono::microseconds longest_nap) : longest_nap_(longest_nap), awake_(kAwake) {}

void Patience::begin() {
  awake_ = last_ > kLong ? std::max<Clock::duration>(awake_ / 2, kLeastAwake) : kAwake;
  last_ = {};
  began_ = Clock::now();
}

void Patience::rest() {
  last_ = waited();
  if (longest_nap_.count() == 0 || last_ < awake_) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::min<Clock::duration>(longest_nap_, last_ / (last_ > kLong ? 8 : 20)));
}

}  // namespace lockstep::run
