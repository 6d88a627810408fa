#include "base/ensure.h"

#include <fmt/format.h>

#include "lockstep/error.h"

namespace lockstep {

void ensure(bool condition, std::string_view message, std::source_location where) {
  if (condition) return;
  throw InternalError(fmt::format("{} ({}:{}:{}); this is a bug in lockstep, please report it", message,
                                  where.file_name(), where.line(), where.column()));
}

}  // namespace lockstep
