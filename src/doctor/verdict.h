#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::doctor {

/// skip: there is nothing here to look at, which is fine.
enum class Level { ok, skip, warn, fail };
std::string_view name_of(Level level);

/// One line of what was found, and the command that mends it: empty if nothing is wrong.
struct Verdict {
  Level level = Level::ok;
  std::string found;
  std::string fix = {};
  std::string check = {};  ///< whose verdict it is; filled in by whoever runs the checks
  bool operator==(const Verdict&) const = default;
};

/// "warn  open_files: ...; fix: ulimit -n 4096". In one line, whatever the texts hold.
std::string line_of(const Verdict& verdict);
/// The last line: how many verdicts of each level there are.
std::string summary_of(const std::vector<Verdict>& verdicts);
/// One object: the worst level, and all verdicts.
std::string json_of(const std::vector<Verdict>& verdicts);
/// 0 if all is well, 1 with warnings, 69 with failures.
int exit_code_of(const std::vector<Verdict>& verdicts);

/// For verdicts that travel between processes.
std::string encode(const std::vector<Verdict>& verdicts);
/// Throws InternalError if `text` is not what encode() gave.
std::vector<Verdict> decode(const std::string& text);

}  // namespace lockstep::doctor
