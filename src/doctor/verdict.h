#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::doctor {

/// skip: there is nothing to check here, which is fine.
enum class Level { ok, skip, warn, fail };
std::string_view name_of(Level level);

/// One line that says what was found, and the command that fixes it; empty if nothing is wrong.
struct Verdict {
  Level level = Level::ok;
  std::string found;
  std::string fix = {};
  std::string check = {};  ///< name of the check; filled in by the code that runs the checks
  bool operator==(const Verdict&) const = default;
};

/// "warn  open_files: ...; fix: ulimit -n 4096". Always one line, for any texts.
std::string line_of(const Verdict& verdict);
/// The last line: the number of verdicts of each level.
std::string summary_of(const std::vector<Verdict>& verdicts);
/// One object: the worst level, and all verdicts.
std::string json_of(const std::vector<Verdict>& verdicts);
/// 0 if all is well, 1 with warnings, 69 with failures.
int exit_code_of(const std::vector<Verdict>& verdicts);

/// For verdicts that travel between processes.
std::string encode(const std::vector<Verdict>& verdicts);
/// Throws InternalError if `text` was not made by encode().
std::vector<Verdict> decode(const std::string& text);

}  // namespace lockstep::doctor
