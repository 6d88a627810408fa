#include "observe/progress.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::milliseconds kPlainInterval{5000};
constexpr double kRateMemorySeconds = 15;
constexpr std::string_view kErase = "\r\x1b[K";
constexpr std::string_view kEraseToEnd = "\x1b[K";

void write_to_stderr(std::string_view text) {
  // A terminal that somebody has stopped takes nothing; the work goes on without the line.
  pollfd writable{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;  // nobody reads it: no reason to stop the work
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int stderr_columns() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

TerminalTraits terminal_traits(bool is_tty, const std::function<std::string(const char*)>& variable) {
  TerminalTraits traits;
  const std::string term = variable("TERM");
  traits.is_terminal = is_tty && !term.empty() && term != "dumb";
  traits.color = traits.is_terminal && variable("NO_COLOR").empty();
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale = variable(name);
    if (locale.empty()) continue;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    traits.unicode = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
    break;  // the first that is set decides
  }
  return traits;
}

RelayedTerminal relayed_terminal(std::string_view text) {
  RelayedTerminal terminal;
  const char* const end = text.data() + text.size();
  const auto columns = std::from_chars(text.data(), end, terminal.columns);
  if (columns.ec != std::errc() || terminal.columns < 1) return {};
  for (std::string_view rest(columns.ptr, end); !rest.empty();) {
    if (rest.front() != ',') return {};
    const std::string_view trait = rest.substr(1, rest.find(',', 1) - 1);
    rest.remove_prefix(1 + trait.size());
    // A newer launcher may know more of its terminal.
    terminal.color = terminal.color || trait == "color";
    terminal.unicode = terminal.unicode || trait == "unicode";
  }
  terminal.is_terminal = true;
  return terminal;
}

ProgressOutput standard_error_output() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  const auto relayed = relayed_terminal(variable("LOCKSTEP_TERMINAL"));
  const TerminalTraits traits =
      relayed.is_terminal ? TerminalTraits(relayed) : terminal_traits(::isatty(STDERR_FILENO) == 1, variable);
  const auto columns = [relayed] { return relayed.is_terminal ? relayed.columns : stderr_columns(); };
  return {traits.is_terminal, relayed.is_terminal, traits.color, traits.unicode, columns,
          write_to_stderr,    Clock::now};
}

ProgressLine::ProgressLine(ProgressOptions options, ProgressOutput output)
    : options_(std::move(options)),
      output_(std::move(output)),
      done_(options_.first),
      rated_done_(options_.first) {
  require(options_.total >= 1, "the total of a progress line must be at least 1");
  started_ = rated_ = output_.now();
  // A terminal shows the first update at once; a log only what takes its time.
  drawn_ = output_.is_terminal ? started_ - kTerminalInterval : started_;
}

ProgressLine::~ProgressLine() {
  if (!visible_) return;
  try {
    leave();
  } catch (...) {
    // A line that cannot be ended is no reason to end the process.
  }
}

bool ProgressLine::due() const {
  const std::lock_guard lock(mutex_);
  return is_due();
}

bool ProgressLine::is_due() const {
  if (!options_.enabled || finished_) return false;
  return output_.now() - drawn_ >= (output_.is_terminal ? kTerminalInterval : kPlainInterval);
}

void ProgressLine::update(int64_t done, std::string_view suffix) {
  const std::lock_guard lock(mutex_);
  if (!options_.enabled || finished_) return;
  done_ = done;
  suffix_ = suffix;
  stale_ = true;
  if (!is_due()) return;
  const auto now = output_.now();
  draw(now, recent_rate(now));
}

std::optional<double> ProgressLine::recent_rate(Clock::time_point now) {
  const double seconds = seconds_since(rated_, now);
  const double kept = std::exp(-seconds / kRateMemorySeconds);
  recent_done_ = recent_done_ * kept + static_cast<double>(done_ - rated_done_);
  recent_seconds_ = recent_seconds_ * kept + seconds;
  rated_ = now;
  rated_done_ = done_;
  if (recent_seconds_ <= 0) return std::nullopt;
  return recent_done_ / recent_seconds_;
}

void ProgressLine::draw(Clock::time_point now, std::optional<double> rate) {
  ProgressStyle style;
  if (output_.is_terminal) {
    // One column stays free: a character in the last one makes some terminals wrap.
    style = {std::max(1, output_.columns() - 1), output_.unicode, output_.color};
  }
  drawn_text_ = progress_text({options_.description, options_.unit, done_, options_.total,
                               seconds_since(started_, now), rate, suffix_},
                              style);
  // One write, so that lines of several processes stay whole; the end is erased after drawing, so nothing
  // flickers.
  if (output_.relayed)
    output_.write(fmt::format("{}{}{}", kErase, drawn_text_, kEraseToEnd));
  else
    output_.write(output_.is_terminal ? fmt::format("\r{}{}", drawn_text_, kEraseToEnd) : drawn_text_ + "\n");
  drawn_ = now;
  stale_ = false;
  visible_ = output_.is_terminal;
}

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!visible_) return;
  // To lockstep-run a drawing without text.
  output_.write(fmt::format("{}{}", kErase, output_.relayed ? kEraseToEnd : ""));
  visible_ = false;
}

void ProgressLine::leave() {
  if (!visible_) return;
  // To lockstep-run what is no drawing is a line.
  output_.write(output_.relayed ? fmt::format("{}{}{}\n", kErase, kEraseToEnd, drawn_text_) : "\n");
  visible_ = false;
}

void ProgressLine::finish() {
  const std::lock_guard lock(mutex_);
  if (!options_.enabled || finished_) return;
  finished_ = true;
  const auto now = output_.now();
  const double seconds = seconds_since(started_, now);
  const bool moved = seconds > 0 && done_ > options_.first;
  if (output_.is_terminal || stale_) {
    draw(now, moved ? std::optional(static_cast<double>(done_ - options_.first) / seconds) : std::nullopt);
  }
  leave();
}

}  // namespace lockstep::observe
