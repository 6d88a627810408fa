#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::doctor {

/// skip: there is nothing to check here, which is fine.
enum class Level { ok, skip, warn, fail };
std::string_view name_of(Level level);

/// One line that says what was found, and the command that fixes it; empty if nothing is wrong.
struct Finding {
  Level level = Level::ok;
  std::string found;
  std::string fix = {};
  std::string check = {};  ///< name of the check; filled in by the code that runs the checks
  bool operator==(const Finding&) const = default;
};

/// "warn  open_files: ...; fix: ulimit -n 4096". Always one line, for any texts.
std::string line_of(const Finding& finding);
/// The last line: the number of findings of each level.
std::string summary_of(const std::vector<Finding>& findings);
/// One object: the worst level, and all findings.
std::string json_of(const std::vector<Finding>& findings);
/// 0 if all is well, 1 with warnings, 69 with failures.
int exit_code_of(const std::vector<Finding>& findings);

/// For findings that travel between processes.
std::string encode(const std::vector<Finding>& findings);
/// Throws InternalError if `text` was not made by encode().
std::vector<Finding> decode(const std::string& text);

}  // namespace lockstep::doctor
