#include "train/checkpoints/best_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

bool is_best_of_its_time(const std::string& path) {
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
    return manifest.best_step == manifest.step;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

std::optional<std::string> run_of_best(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path name = fs::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();  // a slash at the end
  if (name.filename() != "best") return std::nullopt;
  return name.has_parent_path() ? name.parent_path().string() : ".";
}

std::string best_checkpoint(const std::string& directory, const std::string& newest, const std::string& run) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(newest);
  const auto all = checkpoint::find_checkpoints(directory);
  for (const auto& found : all)
    if (found.step == manifest.best_step) return found.path;
  // Its save has failed: the best before it was kept.
  if (manifest.keeps_best)
    for (const auto& found : all)
      if (found.step < manifest.best_step && is_best_of_its_time(found.path)) {
        log_warning(
            fmt::format("the checkpoint of step {}, the best of {}, was not saved; that of step {} was "
                        "the best before it",
                        manifest.best_step, run, found.step));
        return found.path;
      }
  throw CheckpointError(
      manifest.best_step < 0
          ? fmt::format("{} knows no best checkpoint: nothing was evaluated", run)
          : fmt::format("the checkpoint of step {}, the best of {}, was not kept; train with "
                        "checkpoint.keep_best: true",
                        manifest.best_step, run));
}

std::optional<checkpoint::Manifest> manifest_of(const std::string& checkpoint_or_run) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const auto read = [](const std::string& path) -> std::optional<checkpoint::Manifest> {
    try {
      return checkpoint::read_manifest(path);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  };
  if (checkpoint::claims_to_be_checkpoint(checkpoint_or_run)) return read(checkpoint_or_run);
  const auto best_of = run_of_best(checkpoint_or_run);
  const bool is_best = best_of && !fs::exists(checkpoint_or_run, unknown);
  const std::string run = is_best ? *best_of : checkpoint_or_run;
  const auto all =
      checkpoint::find_checkpoints(fs::exists(run + "/checkpoints", unknown) ? run + "/checkpoints" : run);
  for (const auto& found : all) {
    const auto newest = read(found.path);
    if (!newest) continue;
    if (!is_best) return newest;
    const auto best = std::ranges::find(all, newest->best_step, &checkpoint::FoundCheckpoint::step);
    return best == all.end() ? std::nullopt : read(best->path);
  }
  return std::nullopt;
}

void require_same_model(const checkpoint::Manifest& manifest, const checkpoint::MathFields& fields) {
  auto differences = checkpoint::compare_math(manifest.math_fields, fields);
  std::erase_if(differences, [](const auto& difference) { return !difference.starts_with("model."); });
  if (!differences.empty())
    throw ConfigError(
        fmt::format("the checkpoint is of another model:\n  {}\nName the config that it was made by.",
                    join(differences, "\n  ")));
}

}  // namespace lockstep::train
