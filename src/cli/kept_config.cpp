#include "cli/kept_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "lockstep/error.h"

namespace lockstep::cli {

std::string kept_config_of(const std::string& checkpoint, const std::string& command) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path folder = fs::weakly_canonical(fs::absolute(checkpoint), unknown);
  for (const fs::path& run : {folder, folder.parent_path().parent_path(), folder.parent_path()})
    if (const fs::path kept = run / "config.effective.textproto"; fs::exists(kept, unknown))
      return kept.string();
  throw ConfigError(
      fmt::format("{}: {} has no config.effective.textproto beside it; name its config: lockstep {} "
                  "CONFIG --checkpoint {}",
                  command, checkpoint, command, checkpoint));
}

}  // namespace lockstep::cli
