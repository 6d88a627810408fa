#include "fuzz/fuzz.h"
#include "observe/explanation.h"
#include "observe/machine/report.h"
#include "observe/timeline/timeline.h"

namespace lockstep::fuzz {

// What ranks send to rank 0: the first byte says which kind it is.

std::vector<std::string> seeds() {
  observe::RankTime time{.rank = 1, .stage = 0, .computing_ms = {{"linear", 3.5}}};
  observe::RankTimeline timeline{.rank = 1, .host = "a b"};
  timeline.rows = {{.id = 0, .name = "compute"}};
  observe::MachineReport report{.seconds = 2, .samples = 3};
  report.figures = {{.field = "cpu_percent", .mean = 0.5}};
  return {"0" + to_text(time), "1" + to_text(timeline), "2" + to_json(report)};
}

void parse(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view text = bytes.substr(1);
  if (bytes[0] == '0') observe::rank_time_from_text(text);
  if (bytes[0] == '1') {
    observe::RankTimeline timeline = observe::rank_timeline_from_text(text);
    shift(timeline, 1, 0);
    nest(timeline);
  }
  if (bytes[0] == '2') observe::parse_machine_report(text);
}

}  // namespace lockstep::fuzz
