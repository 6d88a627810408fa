#include "data/damage_log.h"

#include <fmt/format.h>

#include "base/log.h"
#include "data/file_list.h"
#include "data/found_damage.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMostNamed = 10;

}  // namespace

std::string RowPlace::to_string() const {
  return unit == nullptr ? one_line(file)
                         : fmt::format("{}: {} {} (byte {})", one_line(file), unit, number, byte);
}

void DamageLog::note(const RowPlace& place, const std::string& problem) {
  const std::string message = fmt::format("{}: {}", place.to_string(), problem);
  if (policy_ == DamagePolicy::fail)
    throw DataError(message + "; mend it, or leave such rows out with data.on_damage: SKIP");
  if (found_) found_->add({.file = place.file, .sample = place.number, .byte = place.byte, .what = problem});
  if (++count_ <= kMostNamed) log_warning("left out: " + message);
}

void DamageLog::finish(const std::string& what) const {
  if (count_ > kMostNamed) log_warning(fmt::format("left out: {} more {}", count_ - kMostNamed, what));
}

}  // namespace lockstep::data
