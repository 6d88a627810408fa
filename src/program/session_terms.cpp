#include "program/session_terms.h"

#include <algorithm>

#include "base/ensure.h"

namespace lockstep::program {

void check(const SessionTerms& terms) {
  ensure(terms.workers >= 1, "a session has workers");
  ensure(!terms.ranges.empty() && std::ranges::all_of(terms.ranges, [](int count) { return count >= 1; }),
         "a session has servers, and each has a range of parameters");
  ensure(!terms.bound || *terms.bound >= 1,
         "a bound of staleness is at least 1: with 0, servers wait for all");
  ensure(terms.pushes == 0 || (!terms.bound && terms.pushes >= terms.workers),
         "without a bound a step has a push of each worker, or more");
  ensure(terms.steps >= 0, "a session's steps are counted");
  ensure(terms.slice_bytes >= 4 && terms.slice_bytes % 4 == 0, "answers are cut between numbers");
}

int landing_slots(const SessionTerms& terms) { return terms.bound.value_or(0) + 1; }

int kept_copies(const SessionTerms& terms, int server) { return server == 0 ? 0 : terms.bound.value_or(0); }

}  // namespace lockstep::program
