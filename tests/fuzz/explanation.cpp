#include "observe/explanation.h"

#include <array>

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  observe::RankTime time{.rank = 1, .stage = 0};
  time.phases_ms.fill(2);
  time.computing_ms = {{"linear", 3.5}};
  return {to_json(observe::explain(std::array{time}, 4, false))};
}

void parse(std::string_view bytes) {
  const observe::Explanation read = observe::explanation_from_json(bytes);
  if (read.ranks.empty()) return;
  describe(read);
  summary(read);
}

}  // namespace lockstep::fuzz
