// Tries random models and layouts for as long as it is told, and prints what it finds, made as small as it
// can:
//   net_campaign --seed 7 --cases 1000 [--first 0] [--gpu] [--brief]
//   net_campaign --case 1234567890 [--gpu]   one case, by the seed that a failure prints
//   net_campaign --show 1234567890 [--gpu]   its config and layout alone

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "net/apart.h"
#include "net/search.h"

namespace lockstep::net {
namespace {

struct Options {
  Search search;
  bool one = false, show = false, brief = false;
};

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto number = [&]() -> uint64_t {
      return i + 1 < count ? std::strtoull(words[++i], nullptr, 0) : 0;
    };
    if (word == "--seed") options.search.seed = number();
    if (word == "--first") options.search.first = static_cast<int64_t>(number());
    if (word == "--cases") options.search.cases = static_cast<int64_t>(number());
    if (word == "--gpu") options.search.generator.on_gpu = true;
    if (word == "--brief") options.brief = true;
    if (word == "--show") options.show = true;
    if (word == "--case" || word == "--show") {
      options.one = true;
      options.search.seed = number();
    }
  }
  return options;
}

int run_one(const Options& options) {
  const Case test_case = generate_case(options.search.seed, options.search.generator);
  fmt::print("{}", describe(test_case));
  if (options.show) return 0;
  const auto finding = check_apart(test_case);
  fmt::print("{}\n", finding ? fmt::format("{}: {}", name_of(finding->kind), finding->what) : "equal");
  if (finding && !options.brief) fmt::print("{}", report_of({options.search.seed, 0, test_case, *finding}));
  return finding ? 1 : 0;
}

int run_many(const Options& options) {
  const auto told = [&](const FoundCase& found) {
    if (options.brief)
      fmt::print("case {} (number {}), {}: {}: {}\n", found.seed, found.number,
                 layout::to_string(found.test_case.layout), name_of(found.finding.kind), found.finding.what);
    else
      fmt::print("{}\n", report_of(found));
    std::fflush(stdout);
    return true;
  };
  // Told as it goes: somebody may end it.
  constexpr int64_t kTogether = 1000;
  SearchTotals totals;
  const int64_t end = options.search.first + options.search.cases;
  for (Search part = options.search; part.first < end; part.first += kTogether) {
    part.cases = std::min(kTogether, end - part.first);
    totals += search(part, told);
    fmt::print("seed {}: {}\n", options.search.seed, totals.text());
    std::fflush(stdout);
  }
  return totals.wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace lockstep::net

int main(int count, char** words) {
  const auto options = lockstep::net::parse(count, words);
  return options.one ? lockstep::net::run_one(options) : lockstep::net::run_many(options);
}
