#include <fmt/format.h>

#include <cstdio>

#include "probe.h"

namespace lockstep::ops {

void print_line(const Line& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

bool print_measured(Line line, const std::function<void(Line&)>& measure) {
  bool worked = true;
  try {
    measure(line);
  } catch (const std::exception& error) {
    line["error"] = error.what();
    worked = false;
  }
  print_line(line);
  return worked;
}

}  // namespace lockstep::ops
