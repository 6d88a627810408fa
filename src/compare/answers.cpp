#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/text.h"
#include "compare/results.h"

namespace lockstep::compare {
namespace {

constexpr size_t kMostNamed = 4;  // layouts in a sentence

std::string rate_text(double bits_per_second) {
  const auto [unit, name] = bits_per_second >= 1e12  ? std::pair(1e12, "T")
                            : bits_per_second >= 1e9 ? std::pair(1e9, "G")
                                                     : std::pair(1e6, "M");
  const double rate = bits_per_second / unit;
  return fmt::format("{:.{}f} {}bit/s", rate, rate < 9.95 && rate != 1 ? 1 : 0, name);
}

std::string count_text(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// "A, B and C".
std::string enumeration(std::vector<std::string> parts) {
  if (parts.size() < 2) return join(parts, "");
  const std::string last = std::move(parts.back());
  parts.pop_back();
  return fmt::format("{} and {}", join(parts, ", "), last);
}

/// "at link rates from 2.1 Gbit/s on", "at every link rate". REQUIRES: there are rates.
std::string rates_text(const std::vector<plan::RateRange>& rates) {
  std::vector<std::string> parts;
  for (const plan::RateRange& range : rates) {
    const bool slowest = range.from <= plan::kSlowestRate, fastest = range.to >= plan::kFastestRate;
    if (slowest && fastest) return "at every link rate";
    parts.push_back(slowest   ? "up to " + rate_text(range.to)
                    : fastest ? fmt::format("from {} on", rate_text(range.from))
                              : fmt::format("from {} to {}", rate_text(range.from), rate_text(range.to)));
  }
  return "at link rates " + join(parts, " and ");
}

/// What is predicted of layouts that tie with another one at the same rates.
std::string prediction_of(const std::vector<std::string>& kinds, const std::string& beside,
                          const std::vector<plan::RateRange>& rates) {
  if (rates.empty())
    return fmt::format("{} is faster than {} at every link rate", beside, enumeration(kinds));
  return fmt::format("{} {} at most 2 % longer than {} {}", enumeration(kinds),
                     kinds.size() == 1 ? "takes" : "take", beside, rates_text(rates));
}

std::string servers_text(const CompareTie& tie) {
  const plan::TyingServers& servers = *tie.servers;
  if (servers.counts.empty())
    return servers.tried == 1 ? fmt::format("{} with 1 server is slower than {}", tie.kind, tie.beside)
                              : fmt::format("{} is slower than {} with any number of servers up to {}",
                                            tie.kind, tie.beside, servers.tried);
  std::vector<std::string> parts;
  for (const plan::CountRange& range : servers.counts)
    parts.push_back(range.from == range.to ? fmt::to_string(range.from)
                                           : fmt::format("{} to {}", range.from, range.to));
  const bool one = servers.counts.size() == 1 && servers.counts[0].to == 1;
  return fmt::format("{} is as fast as {} with {} {} (up to {} were tried)", tie.kind, tie.beside,
                     join(parts, " and "), one ? "server" : "servers", servers.tried);
}

std::string place_text(const CompareResults& results, const std::string& link) {
  if (link.empty()) return "";
  if (link != "none") return " at " + link;
  const double rate = results.free_rate();
  return rate > 0 ? fmt::format(" over a link without a limit ({})", rate_text(rate))
                  : " over a link without a limit";
}

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string proofs_of(const CompareStanding& standing) {
  std::vector<const CompareRow*> rows{standing.fastest};
  rows.insert(rows.end(), standing.slower.begin(), standing.slower.end());
  rows.insert(rows.end(), standing.alike.begin(), standing.alike.end());
  std::ranges::stable_sort(rows, {}, [](const CompareRow* row) { return row->step_ms(); });
  const auto is = [](CompareProof proof) {
    return [proof](const CompareRow* row) { return row->proof == proof; };
  };
  if (std::ranges::all_of(rows, is(CompareProof::identical))) return "All bits are identical.";
  if (std::ranges::all_of(rows, is(CompareProof::not_tried))) return "Bits were not compared.";
  std::vector<std::string> parts, others, untried;
  for (const CompareRow* row : rows)
    if (row->proof == CompareProof::other_mathematics)
      others.push_back(row->kind);
    else if (row->proof == CompareProof::not_tried)
      untried.push_back(row->kind);
    else if (row->proof != CompareProof::identical)
      parts.push_back(fmt::format("bits of {}: {}", row->kind, name_of(row->proof)));
  // If only one was not tried, it had nothing to be compared with: the others are other mathematics.
  if (untried.size() > 1) parts.push_back(fmt::format("bits of {} were not compared", enumeration(untried)));
  if (!others.empty()) parts.push_back(fmt::format("other mathematics: {}", enumeration(others)));
  return capitalised(join(parts, "; ")) + ".";
}

/// What is predicted of layouts of so many workers, with a sentence for those that tie at the same rates.
std::vector<std::string> predictions_of(const CompareResults& results, int workers) {
  struct Alike {
    std::string beside;
    std::vector<plan::RateRange> rates;
    std::vector<std::string> kinds;
  };
  std::vector<Alike> found;
  for (const CompareTie& tie : results.ties) {
    if (tie.servers || tie.workers != workers) continue;
    const auto same = std::ranges::find_if(
        found, [&](const Alike& alike) { return alike.beside == tie.beside && alike.rates == tie.rates; });
    if (same == found.end())
      found.push_back({.beside = tie.beside, .rates = tie.rates, .kinds = {tie.kind}});
    else
      same->kinds.push_back(tie.kind);
  }
  std::vector<std::string> sentences;
  for (const Alike& alike : found)
    sentences.push_back(fmt::format("Predicted for {}: {}.", count_text(workers, "worker"),
                                    prediction_of(alike.kinds, alike.beside, alike.rates)));
  return sentences;
}

/// The most workers with which there is something to compare; 0: there are none.
int most_workers(const std::vector<CompareRow>& rows, const std::string& link) {
  int workers = 0;
  for (const CompareRow& row : rows) {
    const auto others = std::ranges::count_if(rows, [&](const CompareRow& other) {
      return other.link == link && other.workers == row.workers && !other.samples.empty();
    });
    if (others > 1) workers = std::max(workers, row.workers);
  }
  return workers;
}

/// Whether the runs tell that `fastest` is faster than another.
bool is_told_apart(const CompareRow& fastest, const CompareRow& other) {
  return std::min(fastest.samples.size(), other.samples.size()) >= kFewestRuns &&
         fastest.step_interval().high < other.step_interval().low;
}

/// The winner, and, if there are such, the layouts that are not told apart from it.
std::vector<std::string> headline_of(const CompareResults& results, const CompareStanding& standing) {
  const CompareRow& fastest = *standing.fastest;
  const bool is_alone = standing.alike.empty();
  std::string winner = fmt::format("With {}{}, {} {}: {:.2f} ms{}", count_text(standing.workers, "worker"),
                                   place_text(results, standing.link), fastest.kind,
                                   is_alone ? "is fastest" : "has the shortest steps", fastest.step_ms(),
                                   is_alone ? " a step" : "");
  // Only the next one: the table has all.
  if (!standing.slower.empty()) {
    const CompareRow& next = *standing.slower.front();
    winner += fmt::format(", {:.2f} times as fast as {}", next.step_ms() / fastest.step_ms(), next.kind);
  }
  std::vector<std::string> sentences{winner + "."};
  if (is_alone) return sentences;
  std::vector<std::string> alike;
  for (const CompareRow* row : standing.alike) {
    if (alike.size() == kMostNamed) {
      alike.push_back(fmt::format("{} more", standing.alike.size() - kMostNamed));
      break;
    }
    const bool few = row->samples.size() < kFewestRuns;  // that is why
    alike.push_back(fmt::format("{} ({:.2f} ms{})", row->kind, row->step_ms(),
                                few ? ", " + count_text(static_cast<int>(row->samples.size()), "run") : ""));
  }
  sentences.push_back(fmt::format("Not told apart from it: {}.", join(alike, ", ")));
  return sentences;
}

}  // namespace

std::string sentence_of(const CompareTie& tie) {
  if (!tie.servers)
    return fmt::format("{}: {}", count_text(tie.workers, "worker"),
                       prediction_of({tie.kind}, tie.beside, tie.rates));
  const std::string over = tie.link.empty()     ? "these hosts"
                           : tie.link == "none" ? "link without a limit"
                                                : "link of " + tie.link;
  return fmt::format("{}, {}: {}", count_text(tie.workers, "worker"), over, servers_text(tie));
}

std::vector<CompareStanding> CompareResults::standings() const {
  std::vector<CompareStanding> standings;
  for (const std::string& link : links()) {
    const int workers = most_workers(rows, link);
    if (workers == 0) continue;
    std::vector<const CompareRow*> found;
    for (const CompareRow& row : rows)
      if (row.link == link && row.workers == workers && !row.samples.empty()) found.push_back(&row);
    std::ranges::stable_sort(found, {}, [](const CompareRow* row) { return row->step_ms(); });
    CompareStanding standing{
        .link = link, .workers = workers, .fastest = found[0], .slower = {}, .alike = {}};
    for (size_t i = 1; i < found.size(); ++i)
      (is_told_apart(*found[0], *found[i]) ? standing.slower : standing.alike).push_back(found[i]);
    standings.push_back(std::move(standing));
  }
  return standings;
}

std::vector<std::string> CompareResults::answers() const {
  std::vector<std::string> sentences;
  for (const CompareStanding& standing : standings()) {
    const std::vector<std::string> found = headline_of(*this, standing);
    sentences.insert(sentences.end(), found.begin(), found.end());
    sentences.push_back(proofs_of(standing));
  }
  std::vector<int> told;  // numbers of workers of whose ties something is said
  for (const CompareTie& tie : ties) {
    if (std::ranges::find(told, tie.workers) != told.end()) continue;
    told.push_back(tie.workers);
    const std::vector<std::string> found = predictions_of(*this, tie.workers);
    sentences.insert(sentences.end(), found.begin(), found.end());
  }
  if (sentences.empty())
    sentences.push_back("There are not yet two layouts with equal numbers of workers to compare.");
  else if (!ties.empty())
    sentences.push_back(
        fmt::format("Predictions are for link rates from {} to {}, and a host and a core for each process.",
                    rate_text(plan::kSlowestRate), rate_text(plan::kFastestRate)));
  return sentences;
}

std::string CompareResults::headline() const {
  std::vector<std::string> sentences;
  for (const CompareStanding& standing : standings()) {
    const std::vector<std::string> found = headline_of(*this, standing);
    sentences.insert(sentences.end(), found.begin(), found.end());
  }
  return sentences.empty() ? answers().front() : join(sentences, " ");
}

}  // namespace lockstep::compare
