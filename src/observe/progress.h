#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "observe/progress_text.h"

namespace lockstep::observe {

/// The output of a progress line, and its clock. Tests pass their own.
struct ProgressOutput {
  bool is_terminal = false;  ///< one that understands "\r" and "erase to the end"
  bool relayed = false;      ///< behind lockstep-run, which draws (launcher/lockstep_run/terminal.py)
  bool color = false, unicode = false;
  std::function<int()> columns;  ///< asked before each drawing: windows change
  std::function<void(std::string_view)> write;
  std::function<Clock::time_point()> now;
};

/// stderr, by what it is and by TERM, NO_COLOR and the locale's variables; or by LOCKSTEP_TERMINAL, in which
/// lockstep-run describes its own.
ProgressOutput standard_error_output();

/// What the environment says about an output. `variable` returns a variable's text, "" if it is not set.
struct TerminalTraits {
  bool is_terminal = false, color = false, unicode = false;
};
TerminalTraits terminal_traits(bool is_tty, const std::function<std::string(const char*)>& variable);

/// The terminal that LOCKSTEP_TERMINAL describes, "80,color,unicode"; no terminal for any other text.
struct RelayedTerminal : TerminalTraits {
  int columns = 0;
};
RelayedTerminal relayed_terminal(std::string_view text);

struct ProgressOptions {
  std::string description = "train";
  std::string unit = "step";
  int64_t total = 1;    ///< at least 1
  int64_t first = 0;    ///< done before this process began, if it resumed from a checkpoint
  bool enabled = true;  ///< false under --quiet, metrics.progress: false, and on all ranks but one
};

/// A line that is redrawn in place, at most ten times a second. If the output is no terminal, it prints plain
/// lines at most every five seconds, and the last one. Other writers to the same output call clear() first,
/// from any thread. Thread-safe.
class ProgressLine {
 public:
  ProgressLine(ProgressOptions options, ProgressOutput output = standard_error_output());
  /// Without finish(), leaves the line as it is and begins a new one.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// True if an update would be drawn now. For callers whose suffix is costly.
  bool due() const;
  void update(int64_t done, std::string_view suffix = {});
  /// Erases the line; a later update draws it again.
  void clear();
  /// Draws the last state with the mean rate, and ends the line. Later calls do nothing.
  void finish();

 private:
  double seconds_since(Clock::time_point begin, Clock::time_point end) const {
    return milliseconds_between(begin, end) / 1000;
  }
  bool is_due() const;
  void draw(Clock::time_point now, std::optional<double> rate);
  void leave();  ///< as it stands, and begins a new line
  std::optional<double> recent_rate(Clock::time_point now);

  mutable std::mutex mutex_;  ///< guards all
  ProgressOptions options_;
  ProgressOutput output_;
  Clock::time_point started_, drawn_, rated_;
  int64_t done_ = 0, rated_done_ = 0;
  double recent_done_ = 0, recent_seconds_ = 0;  ///< both fade with age
  std::string suffix_;
  bool stale_ = true;  ///< something was said since the last drawing
  std::string drawn_text_;
  bool visible_ = false;  ///< on a terminal, without its newline
  bool finished_ = false;
};

}  // namespace lockstep::observe
