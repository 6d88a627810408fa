#include "run/exposed_time.h"

#include <algorithm>
#include <vector>

namespace lockstep::run {

double exposed_communication_ms(std::span<const Stand> stands, int lanes) {
  struct Change {
    double at_ms;
    int standing, for_communication;
  };
  std::vector<Change> changes;
  for (const Stand& stand : stands) {
    changes.push_back({stand.begin_ms, 1, stand.for_communication ? 1 : 0});
    changes.push_back({stand.end_ms, -1, stand.for_communication ? -1 : 0});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& one, const Change& other) { return one.at_ms < other.at_ms; });
  double exposed = 0, before = 0;
  int standing = 0, for_communication = 0;
  for (const Change& change : changes) {
    if (standing == lanes && for_communication > 0) exposed += change.at_ms - before;
    before = change.at_ms;
    standing += change.standing;
    for_communication += change.for_communication;
  }
  return exposed;
}

}  // namespace lockstep::run
