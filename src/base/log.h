#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class LogLevel { debug, info, warning, error };

/// Messages go to stderr, one line each, written by one call so that lines of several ranks do not mix.
/// The process-wide settings below are set once by the command line, before threads start.
void set_log_level(LogLevel lowest);
void set_log_rank(int rank, int world_size);  ///< prefixes lines with "[rank]" if world_size > 1
LogLevel log_level();

/// Called before each line is written, by one thread at a time. Code that draws an unfinished line on stderr
/// clears it here. It must not log. Null removes the hook; after the call it is not running any more.
void set_before_log(std::function<void()> hook);

/// Text for a terminal: control characters, which names of files and configs may contain, become "\x1b"; new
/// lines and tabs stay.
std::string printable(std::string_view text);

void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) { log(LogLevel::debug, message); }
inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }

}  // namespace lockstep
