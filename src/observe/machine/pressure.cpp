#include "observe/machine/pressure.h"

#include <string>

#include "base/text.h"
#include "observe/machine/text_numbers.h"

namespace lockstep::observe {

StalledSeconds stalled_seconds(std::string_view pressure) {
  // some avg10=0.00 avg60=0.00 avg300=0.00 total=17, in microseconds
  constexpr std::string_view kTotal = "total=";
  StalledSeconds seconds;
  for (const std::string& line : split(pressure, '\n')) {
    const auto words = words_of(line);
    if (words.empty() || !words.back().starts_with(kTotal)) continue;
    const auto microseconds = number_in(words.back().substr(kTotal.size()));
    if (!microseconds) continue;
    if (words[0] == "some") seconds.some = *microseconds * 1e-6;
    if (words[0] == "full") seconds.full = *microseconds * 1e-6;
  }
  return seconds;
}

}  // namespace lockstep::observe
