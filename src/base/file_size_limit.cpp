#include "base/file_size_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>

#include "base/text.h"

namespace lockstep {

void survive_file_size_limit() { ::signal(SIGXFSZ, SIG_IGN); }

std::optional<int64_t> file_size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string file_size_advice() {
  const auto limit = file_size_limit();
  return limit ? fmt::format("a file may have {} here; raise that limit (ulimit -f unlimited)",
                             human_bytes(*limit))
               : "the file system takes no larger files; choose another output folder";
}

}  // namespace lockstep
