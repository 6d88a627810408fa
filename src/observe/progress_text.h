#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::observe {

/// The contents of a progress line, without clock or terminal.
struct ProgressState {
  std::string_view description;
  std::string_view unit;  ///< "step"
  int64_t done = 0, total = 1;
  double elapsed_seconds = 0;
  std::optional<double> rate;  ///< units per second; unknown at first
  std::string_view suffix;     ///< "loss 1.234"
};

/// How it is drawn.
struct ProgressStyle {
  int columns = 0;       ///< the line is never wider; 0: no limit, and no bar
  bool unicode = false;  ///< a bar of eighths of blocks, otherwise of '#'
  bool color = false;
};

/// "train:  76%|███ | 76/100 [00:10<00:03, 7.60 step/s] loss 1.234". The bar takes the room that is left, up
/// to 40 cells. If there is little room, the bar is omitted first; then the end of the line is cut.
std::string progress_text(const ProgressState& state, const ProgressStyle& style);

std::string clock_text(double seconds);  ///< "01:05", "2:00:07"
std::string rate_text(double per_second,
                      std::string_view unit);  ///< "7.60 step/s", "12.3k step/s", "2.50 s/step"

}  // namespace lockstep::observe
