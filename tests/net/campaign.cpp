// Tries random models and layouts for as long as it is told, and prints what it finds, made as small as it
// can:
//   net_campaign --seed 7 --cases 1000 [--first 0] [--gpu] [--brief]
//   net_campaign --case 1234567890 [--gpu]   one case, by the seed that a failure prints
//   net_campaign --show 1234567890 [--gpu]   its config and layout alone
//   net_campaign --file case.textproto --layout "dp=1,pp=2" [--gpu] [--shared-memory] [--lanes-at-once]
//     [--ranks-per-host 2]   one case, by the config that a failure prints

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/hash.h"
#include "cli/version.h"
#include "net/apart.h"
#include "net/replay.h"
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

int run_file(const Replay& replay) {
  std::ifstream file(replay.file);
  if (!file) {
    fmt::print(stderr, "{}: cannot be read\n", replay.file);
    return 2;
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    const auto finding = check_texts(text, replay.layout, replay.facts);
    fmt::print("{}\n", finding ? fmt::format("{}: {}", name_of(finding->kind), finding->what) : "equal");
    return finding ? 1 : 0;
  } catch (const std::exception& failure) {
    fmt::print(stderr, "{}\n", failure.what());
    return 2;
  }
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
  fmt::print("lockstep {}; generator {}\n", cli::commit_text(),
             to_hex(generator_hash(options.search.generator)));
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
    fmt::print("seed {}, cases {} to {}: {}\n", options.search.seed, options.search.first,
               part.first + part.cases - 1, totals.text());
    std::fflush(stdout);
  }
  return totals.all.wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace lockstep::net

int main(int count, char** words) {
  if (const auto replay =
          lockstep::net::parse_replay(std::vector<std::string>(words + std::min(count, 1), words + count)))
    return lockstep::net::run_file(*replay);
  const auto options = lockstep::net::parse(count, words);
  return options.one ? lockstep::net::run_one(options) : lockstep::net::run_many(options);
}
