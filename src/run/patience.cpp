#include "run/patience.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep::run {

void rest(Clock::duration waited, std::chrono::microseconds longest_nap) {
  constexpr std::chrono::microseconds kAwake{200};  // what comes that soon is worth a core
  if (longest_nap.count() == 0 || waited < kAwake) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::min<Clock::duration>(longest_nap, waited / 20));
}

}  // namespace lockstep::run
