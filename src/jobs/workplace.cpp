#include "jobs/workplace.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::jobs {

namespace fs = std::filesystem;

Workplace::Workplace(const std::string& command, const std::string& directory)
    : path_(directory), temporary_(directory.empty()) {
  std::error_code error;
  if (temporary_) {
    std::string name = (fs::temp_directory_path(error) / fmt::format("lockstep-{}-XXXXXX", command)).string();
    if (::mkdtemp(name.data()) == nullptr) throw IoError(fmt::format("cannot make the folder {}", name));
    path_ = name;
    return;
  }
  if (fs::exists(path_, error) && !(fs::is_directory(path_, error) && fs::is_empty(path_, error)))
    throw ConfigError(fmt::format("--out {} is not an empty folder; name another one", path_));
  fs::create_directories(path_, error);
  if (error) throw IoError(fmt::format("cannot make the folder {}: {}", path_, error.message()));
}

Workplace::~Workplace() {
  std::error_code ignored;
  if (temporary_ && !kept_) fs::remove_all(path_, ignored);
}

std::string last_lines(const std::string& text, size_t most) {
  auto lines = split(trim(text), '\n');
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  return join(lines, "\n  ");
}

}  // namespace lockstep::jobs
