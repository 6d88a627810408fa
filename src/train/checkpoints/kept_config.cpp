#include "train/checkpoints/kept_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "lockstep/error.h"
#include "train/checkpoints/best_checkpoint.h"

namespace lockstep::train {

std::string kept_config_of(const std::string& checkpoint, const std::string& advice) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path folder = fs::weakly_canonical(fs::absolute(checkpoint), unknown);
  for (const fs::path& run : {folder, folder.parent_path().parent_path(), folder.parent_path()})
    if (const fs::path kept = run / "config.effective.textproto"; fs::exists(kept, unknown))
      return kept.string();
  throw ConfigError(fmt::format("{} has no config.effective.textproto beside it; {}", checkpoint, advice));
}

bool uses_average(const config::RunConfig& config, std::optional<bool> wished) {
  return wished.value_or(config.evaluates_average);
}

OpenedRun open_run(const std::string& checkpoint, const std::string& config,
                   std::vector<std::string> overrides, std::optional<bool> average,
                   const std::string& advice) {
  overrides.emplace_back("parallel.profile=\"\"");  // of training steps
  // In one process, however many have trained.
  OpenedRun opened{config.empty()
                       ? config::load_kept_config(kept_config_of(checkpoint, advice), overrides, "pp=1")
                       : config::load_run_config(config, overrides, "pp=1"),
                   checkpoint::Checkpoint(find_checkpoint(checkpoint)),
                   {}};
  require_same_model(opened.checkpoint.manifest(), opened.config.math_fields);
  if (uses_average(opened.config, average)) opened.weights = checkpoint::Weights::averages;
  opened.config.data.trains = false;
  opened.config.data.encodings = opened.checkpoint.manifest().encodings;
  return opened;
}

}  // namespace lockstep::train
