#include "net/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/hash.h"
#include "net/apart.h"
#include "net/replay.h"
#include "net/shrink.h"

namespace lockstep::net {

namespace {

std::string row_of(const std::string& kind, const KindTotals& totals) {
  return fmt::format("{:<20} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", kind, totals.cases, totals.bits,
                     totals.compared, totals.fast, totals.diverged, totals.wrong, totals.refused);
}

std::string text_of_findings(const std::map<std::string, int64_t>& findings) {
  std::string text;
  for (const auto& [kind, count] : findings)
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", count, kind);
  return text.empty() ? "" : text + ")";
}

}  // namespace

KindTotals& KindTotals::operator+=(const KindTotals& more) {
  cases += more.cases;
  bits += more.bits;
  fast += more.fast;
  diverged += more.diverged;
  compared += more.compared;
  wrong += more.wrong;
  refused += more.refused;
  return *this;
}

SearchTotals& SearchTotals::operator+=(const SearchTotals& more) {
  all += more.all;
  tensors += more.tensors;
  sharp_tensors += more.sharp_tensors;
  states += more.states;
  sharp_states += more.sharp_states;
  for (const auto& [kind, count] : more.findings) findings[kind] += count;
  for (const auto& [kind, totals] : more.kinds) kinds[kind] += totals;
  return *this;
}

std::string SearchTotals::text() const {
  std::string text = fmt::format("{} cases, {} wrong{}; {} compared with the oracle\n", all.cases, all.wrong,
                                 text_of_findings(findings), all.compared);
  text += fmt::format(
      "{} tensors of these, {} to a hundredth of what training changed; {} of optimizer state, {} likewise\n",
      tensors, sharp_tensors, states, sharp_states);
  text += fmt::format("{:<20} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "", "cases", "bits", "oracle",
                      "FAST", "diverged", "wrong", "refused");
  text += row_of("all", all);
  for (const auto& [kind, totals] : kinds) text += row_of(kind, totals);
  return text;
}

std::vector<std::string> kinds_of(const layout::Layout& layout) {
  const auto word = [&](std::string_view key) {
    const auto found = std::ranges::find(layout::layout_keys(), key, &layout::LayoutKey::name);
    return layout::value_text(*found, found->get(layout));
  };
  const bool serves = layout.sync == layout::SyncMethod::parameter_server;
  std::vector<std::string> kinds;
  kinds.push_back(layout.pp > 1 ? word("schedule") : "one stage");
  kinds.push_back(serves                                            ? "servers " + word("placement")
                  : layout.shard == layout::ShardedState::optimizer ? "shard"
                                                                    : "all-reduce");
  kinds.push_back("recompute " + word("recompute"));
  if (layout.pp > 1 && layout.dp > 1) kinds.emplace_back("pipeline replicas");
  return kinds;
}

SearchTotals search(const Search& search, const std::function<bool(const FoundCase&)>& found) {
  SearchTotals totals;
  const auto count = [&](const layout::Layout& layout, const KindTotals& one) {
    totals.all += one;
    for (const std::string& kind : kinds_of(layout)) totals.kinds[kind] += one;
  };
  for (int64_t number = search.first; number < search.first + search.cases; ++number) {
    const uint64_t seed = seed_of_case(search.seed, number);
    std::vector<layout::Layout> refused;
    const Case test_case = generate_case(seed, search.generator, &refused);
    for (const layout::Layout& layout : refused) count(layout, {.refused = 1});
    CheckReport report;
    const auto finding = check_apart(test_case, search.check, &report);
    count(test_case.layout, {.cases = 1,
                             .bits = report.bits ? 1 : 0,
                             .fast = test_case.training.fast && !report.diverged ? 1 : 0,
                             .diverged = report.diverged ? 1 : 0,
                             .compared = report.oracle.compared ? 1 : 0,
                             .wrong = finding ? 1 : 0});
    totals.tensors += report.oracle.tensor_count;
    totals.sharp_tensors += report.oracle.sharp_tensors;
    totals.states += report.oracle.state_count;
    totals.sharp_states += report.oracle.sharp_states;
    if (!finding) continue;
    ++totals.findings[std::string(name_of(finding->kind))];
    if (!found({seed, number, test_case, *finding})) break;
  }
  return totals;
}

std::string report_of(const FoundCase& found, const CheckOptions& options) {
  Finding last = found.finding;
  const Case smallest = shrink(found.test_case, [&](const Case& smaller) {
    const auto finding = check_apart(smaller, options);
    const bool same = finding && finding->kind == found.finding.kind;
    if (same) last = *finding;
    return same;
  });
  return fmt::format("{}: {}\nfrom case {} (number {}), {}\n{}# {}\n", name_of(last.kind), last.what,
                     found.seed, found.number, layout::to_string(found.test_case.layout), describe(smallest),
                     verify_command(smallest, last, options));
}

uint64_t generator_hash(const GeneratorOptions& options) {
  std::string text;
  for (int64_t number = 0; number < 50; ++number)
    text += describe(generate_case(seed_of_case(1, number), options));
  return hash64(text);
}

uint64_t seed_of_today() {
  if (const char* stated = std::getenv("LOCKSTEP_NET_SEED")) return std::strtoull(stated, nullptr, 0);
  const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  return static_cast<uint64_t>(today.time_since_epoch().count());
}

}  // namespace lockstep::net
