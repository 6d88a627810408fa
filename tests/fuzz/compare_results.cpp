#include "compare/results.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  compare::CompareResults results{.command = "lockstep compare", .config = "c.textproto"};
  std::vector<std::string> texts = {to_json(results).dump(1)};
  compare::CompareRow row{.link = "1gbit", .workers = 2, .layout = layout::parse_layout("dp=2")};
  row.proof_detail = "step 3";
  row.kill = compare::CompareKill{.seconds = 2, .undisturbed_seconds = 1, .starts = 2};
  row.samples.push_back({.round = 1, .step_ms = 2.5});
  row.samples.back().staleness_bound = 2;
  row.samples.back().staleness_histogram = {1, 2};
  row.losses.push_back({8, 0.5});
  row.links_theory.push_back({.host = "host-a", .sent = 8, .received = 4});
  results.rows = results.forecasts = {row};
  compare::CompareTie tie{.workers = 2, .kind = "sync=ps", .beside = "sync=all_reduce"};
  tie.rates.push_back({.from = 1e6, .to = 1e9});
  results.ties.push_back(tie);
  tie.servers.emplace().tried = 3;
  tie.servers->counts.push_back({.from = 1, .to = 2});
  results.ties.push_back(tie);
  results.measured_links.push_back({.link = "1gbit", .latency_seconds = 1e-4, .all_reduce = {{1024, 1e-3}}});
  texts.push_back(to_json(results).dump(1));
  return texts;
}

void parse(std::string_view bytes) {
  const compare::CompareResults results =
      compare::compare_results_from_text(std::string(bytes), "results.json");
  results.csv();
  // What is written is what was read. Numbers that are none are null in both.
  const std::string text = to_json(results).dump();
  if (to_json(compare::compare_results_from_text(text, "again")).dump() != text)
    throw InternalError("results of compare are others when they are written and read");
}

}  // namespace lockstep::fuzz
