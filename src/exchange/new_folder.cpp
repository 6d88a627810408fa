#include "exchange/new_folder.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::exchange {

namespace fs = std::filesystem;

NewFolder::NewFolder(std::string path, FileSystem& files) : path_(std::move(path)), files_(files) {
  path_ = fs::absolute(path_).lexically_normal().string();
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  std::error_code unknown;
  if (fs::equivalent(path_, fs::current_path(), unknown))
    throw ConfigError(fmt::format("--out {}: is the current folder; name another", path_));
  if (fs::exists(path_, unknown) && !(fs::is_directory(path_, unknown) && fs::is_empty(path_, unknown)))
    throw ConfigError(fmt::format("--out {}: is not an empty folder; name another", path_));
  // Exclusive: another command may be writing there, or somebody have a folder of this name.
  std::error_code failed;
  if (!fs::create_directory(unfinished(), failed) && (!failed || failed == std::errc::file_exists))
    throw ConfigError(
        fmt::format("--out {}: {} is there: another command writes it, or was interrupted; if none does, "
                    "remove it",
                    path_, unfinished()));
  files_.make_directory(unfinished());  // durable, with those above
}

NewFolder::~NewFolder() {
  if (finished_) return;
  try {
    files_.remove_all(unfinished());
  } catch (const std::exception&) {
    // What failed before is reported; the next attempt says what is left.
  }
}

void NewFolder::write(const std::string& name, const std::string& text) {
  const auto file = files_.create(this->file(name));
  file->write(text.data(), text.size());
  file->sync();
  file->close();
}

void NewFolder::finish() {
  files_.sync_directory(unfinished());
  files_.rename(unfinished(), path_);  // replaces an empty folder, and no other
  finished_ = true;
  const std::string parent = fs::path(path_).parent_path().string();
  files_.sync_directory(parent.empty() ? "." : parent);
}

}  // namespace lockstep::exchange
