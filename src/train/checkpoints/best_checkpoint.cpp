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

std::optional<checkpoint::Manifest> readable_manifest(const std::string& path) {
  try {
    return checkpoint::read_manifest(path);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// In a folder there may be checkpoints of other runs, too.
bool is_of_run(const std::string& path, const std::string& run_id) {
  const auto manifest = readable_manifest(path);
  return manifest && manifest->run_id == run_id;
}

bool is_best_of_its_time(const std::string& path) {
  const auto manifest = readable_manifest(path);
  return manifest && manifest->best_step == manifest->step;
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
  auto all = checkpoint::find_checkpoints(directory);
  std::erase_if(all, [&](const auto& found) { return !is_of_run(found.path, manifest.run_id); });
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
  if (manifest.best_step < 0)
    throw CheckpointError(fmt::format("{} has no best checkpoint: nothing was evaluated", run));
  throw CheckpointError(
      fmt::format("the checkpoint of step {}, the best of {}, is not there: {}", manifest.best_step, run,
                  manifest.keeps_best
                      ? "it is in the folder of the run that this one was resumed from, or its save failed"
                      : "it was not kept; train with checkpoint.keep_best: true"));
}

std::optional<std::string> newest_checkpoint(const std::string& directory,
                                             const checkpoint::BeforeRead& before_read) {
  const auto checkpoint = checkpoint::load_latest_valid(
      directory,
      [&](const std::string& path, const std::string& reason) {
        log_warning(fmt::format("refused checkpoint {}: {}", path, reason));
      },
      before_read);
  if (checkpoint) return checkpoint->path();
  if (checkpoint::find_checkpoints(directory).empty()) return std::nullopt;
  throw CheckpointError(fmt::format(
      "none of the checkpoints in {} can be used; to start afresh, choose another --out", directory));
}

std::string find_checkpoint(const std::string& path, const checkpoint::BeforeRead& before_read) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto folder_of = [](const std::string& run) {
    return fs::exists(run + "/checkpoints") ? run + "/checkpoints" : run;
  };
  if (const auto run = run_of_best(path); run && !fs::exists(path, error)) {
    const auto newest = newest_checkpoint(folder_of(*run), before_read);
    if (!newest) throw CheckpointError(fmt::format("{} is no run: it contains no checkpoints", *run));
    return best_checkpoint(folder_of(*run), *newest, *run);
  }
  if (!fs::exists(path, error))
    throw CheckpointError(error ? fmt::format("cannot look at checkpoint {}: {}", path, error.message())
                                : fmt::format("there is no checkpoint {}", path));
  // Whatever it is called, and through whichever links.
  if (checkpoint::claims_to_be_checkpoint(path)) return path;
  const auto newest = newest_checkpoint(folder_of(path), before_read);
  if (!newest) throw CheckpointError(fmt::format("{} is no checkpoint and contains none", path));
  return *newest;
}

std::optional<checkpoint::Manifest> manifest_of(const std::string& checkpoint_or_run) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (checkpoint::claims_to_be_checkpoint(checkpoint_or_run)) return readable_manifest(checkpoint_or_run);
  const auto best_of = run_of_best(checkpoint_or_run);
  const bool is_best = best_of && !fs::exists(checkpoint_or_run, unknown);
  const std::string run = is_best ? *best_of : checkpoint_or_run;
  const auto all =
      checkpoint::find_checkpoints(fs::exists(run + "/checkpoints", unknown) ? run + "/checkpoints" : run);
  for (const auto& found : all) {
    const auto newest = readable_manifest(found.path);
    if (!newest) continue;
    if (!is_best) return newest;
    const auto best = std::ranges::find_if(all, [&](const auto& one) {
      return one.step == newest->best_step && is_of_run(one.path, newest->run_id);
    });
    return best == all.end() ? std::nullopt : readable_manifest(best->path);
  }
  return std::nullopt;
}

void require_same_model(const checkpoint::Manifest& manifest, const checkpoint::MathFields& fields) {
  auto differences = checkpoint::compare_math(manifest.math_fields, fields);
  // What is frozen changes nothing of what a model says.
  std::erase_if(differences, [](const auto& difference) {
    return !difference.starts_with("model.") || difference.starts_with("model.frozen:");
  });
  if (!differences.empty())
    throw ConfigError(
        fmt::format("the checkpoint belongs to another model:\n  {}\nName the config that it was made with.",
                    join(differences, "\n  ")));
}

}  // namespace lockstep::train
