#include "net/search.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "net/apart.h"
#include "net/shrink.h"

namespace lockstep::net {

std::string SearchTotals::text() const {
  return fmt::format(
      "{} cases, {} wrong; {} compared with the oracle, {} tensors of them, {} to a hundredth of what "
      "training "
      "changed",
      cases, wrong, compared, tensors, sharp_tensors);
}

SearchTotals& SearchTotals::operator+=(const SearchTotals& more) {
  cases += more.cases;
  wrong += more.wrong;
  compared += more.compared;
  tensors += more.tensors;
  sharp_tensors += more.sharp_tensors;
  return *this;
}

SearchTotals search(const Search& search, const std::function<bool(const FoundCase&)>& found) {
  SearchTotals totals;
  for (int64_t number = search.first; number < search.first + search.cases; ++number) {
    const uint64_t seed = seed_of_case(search.seed, number);
    const Case test_case = generate_case(seed, search.generator);
    OracleReport oracle;
    const auto finding = check_apart(test_case, search.check, &oracle);
    ++totals.cases;
    totals.compared += oracle.compared ? 1 : 0;
    totals.tensors += oracle.tensor_count;
    totals.sharp_tensors += oracle.sharp_tensors;
    if (!finding) continue;
    ++totals.wrong;
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
  return fmt::format("{}: {}\nfrom case {} (number {}), {}\n{}", name_of(last.kind), last.what, found.seed,
                     found.number, layout::to_string(found.test_case.layout), describe(smallest));
}

uint64_t seed_of_today() {
  if (const char* stated = std::getenv("LOCKSTEP_NET_SEED")) return std::strtoull(stated, nullptr, 0);
  const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  return static_cast<uint64_t>(today.time_since_epoch().count());
}

}  // namespace lockstep::net
