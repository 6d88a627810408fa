#include "data/damage_log.h"

#include <fmt/format.h>

#include "base/log.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMostNamed = 10;

}  // namespace

void DamageLog::note(const std::string& message) {
  if (policy_ == DamagePolicy::fail)
    throw DataError(message + "; mend it, or leave such rows out with data.on_damage: SKIP");
  if (++count_ <= kMostNamed) log_warning("left out: " + message);
}

void DamageLog::finish(const std::string& what) const {
  if (count_ > kMostNamed) log_warning(fmt::format("left out: {} more {}", count_ - kMostNamed, what));
}

}  // namespace lockstep::data
