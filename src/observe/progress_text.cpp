#include "observe/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::observe {
namespace {

constexpr int kMaxBarCells = 40;
constexpr int kMinBarCells = 4;

/// Code points: names and numbers here have no wide or combining characters.
int width_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string_view cut(std::string_view text, int width) {
  size_t end = 0;
  for (int seen = 0; end < text.size(); ++end) {
    if ((text[end] & 0xC0) != 0x80 && seen++ == width) break;
  }
  return text.substr(0, end);
}

std::string bar_text(int64_t done, int64_t total, int cells, bool unicode) {
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = static_cast<double>(done) / static_cast<double>(total) * cells;
  const int full = static_cast<int>(filled);
  std::string bar;
  for (int i = 0; i < full; ++i) bar += unicode ? "█" : "#";
  if (unicode) bar += kEighths[static_cast<int>((filled - full) * 8)];
  bar.append(static_cast<size_t>(cells - width_of(bar)), ' ');
  return bar;
}

/// Three digits that matter.
std::string three_digits(double value) {
  return value < 9.995   ? fmt::format("{:.2f}", value)
         : value < 99.95 ? fmt::format("{:.1f}", value)
                         : fmt::format("{:.0f}", value);
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e9));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string rate_text(double per_second, std::string_view unit) {
  if (per_second < 1) return fmt::format("{} s/{}", three_digits(1 / per_second), unit);
  if (per_second < 999.5) return fmt::format("{} {}/s", three_digits(per_second), unit);
  if (per_second < 999.5e3) return fmt::format("{}k {}/s", three_digits(per_second / 1e3), unit);
  return fmt::format("{}M {}/s", three_digits(per_second / 1e6), unit);
}

std::string progress_text(const ProgressState& state, const ProgressStyle& style) {
  const int64_t done = std::clamp<int64_t>(state.done, 0, state.total);
  const bool moving = state.rate && *state.rate > 0;
  // Whole percents that are reached: 100 is said at the end alone.
  const auto percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(state.total));
  const std::string head = fmt::format("{}: {:3}%", state.description, percent);
  std::string tail =
      fmt::format(" {}/{} [{}<{}, {}]", state.done, state.total, clock_text(state.elapsed_seconds),
                  moving ? clock_text(static_cast<double>(state.total - done) / *state.rate) : "?",
                  moving ? rate_text(*state.rate, state.unit) : "?");
  if (!state.suffix.empty()) tail += fmt::format(" {}", state.suffix);
  if (style.columns <= 0) return head + tail;

  const int room = style.columns - width_of(head) - width_of(tail) - 2;
  if (room < kMinBarCells) return std::string(cut(head + tail, style.columns));
  const std::string bar = bar_text(done, state.total, std::min(room, kMaxBarCells), style.unicode);
  return style.color ? fmt::format("{}|\x1b[32m{}\x1b[0m|{}", head, bar, tail)
                     : fmt::format("{}|{}|{}", head, bar, tail);
}

}  // namespace lockstep::observe
