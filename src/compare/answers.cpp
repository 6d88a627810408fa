#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
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

/// "from 2.1 Gbit/s on", "at no rate from 1 Mbit/s to 1 Tbit/s".
std::string rates_text(const std::vector<plan::RateRange>& rates) {
  const std::string all =
      fmt::format("rate from {} to {}", rate_text(plan::kSlowestRate), rate_text(plan::kFastestRate));
  if (rates.empty()) return "at no " + all;
  std::vector<std::string> parts;
  for (const plan::RateRange& range : rates) {
    const bool slowest = range.from <= plan::kSlowestRate, fastest = range.to >= plan::kFastestRate;
    parts.push_back(slowest && fastest ? "at any " + all
                    : slowest          ? "up to " + rate_text(range.to)
                    : fastest          ? fmt::format("from {} on", rate_text(range.from))
                              : fmt::format("between {} and {}", rate_text(range.from), rate_text(range.to)));
  }
  return join(parts, " and ");
}

std::string servers_text(const CompareTie& tie) {
  const plan::TyingServers& servers = *tie.servers;
  const std::string tried = fmt::format("of up to {}", servers.tried);
  if (servers.counts.empty())
    return servers.tried == 1 ? "not even 1 server ties"
                              : fmt::format("not even {} servers tie", servers.tried);
  std::vector<std::string> parts;
  for (const plan::CountRange& range : servers.counts)
    parts.push_back(range.from == range.to ? fmt::to_string(range.from)
                    : range.to == servers.tried && range.to > range.from
                        ? fmt::format("{} and more", range.from)
                        : fmt::format("{} to {}", range.from, range.to));
  const bool one = servers.counts.size() == 1 && servers.counts[0].to == 1;
  return fmt::format("{} {}, {}", join(parts, " and "), one ? "server ties" : "servers tie", tried);
}

std::string link_text(const CompareResults& results, const std::string& link) {
  if (link != "none") return fmt::format("At {}, ", link);
  const double rate = results.free_rate();
  return rate > 0 ? fmt::format("Over a free link ({}), ", rate_text(rate)) : "Over a free link, ";
}

std::string proofs_of(const std::vector<const CompareRow*>& rows) {
  const auto is = [](CompareProof proof) {
    return [proof](const CompareRow* row) { return row->proof == proof; };
  };
  if (std::ranges::all_of(rows, is(CompareProof::identical))) return "all bits are identical";
  if (std::ranges::all_of(rows, is(CompareProof::not_tried))) return "bits were not compared";
  std::vector<std::string> parts, others, untried;
  for (const CompareRow* row : rows)
    if (row->proof == CompareProof::other_mathematics)
      others.push_back(row->kind);
    else if (row->proof == CompareProof::not_tried)
      untried.push_back(row->kind);
    else if (row->proof != CompareProof::identical)
      parts.push_back(fmt::format("bits of {}: {}", row->kind, name_of(row->proof)));
  // One alone has nothing to be compared with, as the others' mathematics say already.
  if (untried.size() > 1)
    parts.push_back(fmt::format("bits of {} were not compared", join(untried, " and ")));
  if (!others.empty()) parts.push_back(fmt::format("other mathematics: {}", join(others, " and ")));
  return join(parts, "; ");
}

/// Where layouts of so many workers tie, those that do at the same rates in one phrase; "" where nothing is
/// known.
std::string ties_of(const CompareResults& results, int workers) {
  std::vector<std::pair<std::string, std::vector<std::string>>> phrases;  // how, and who
  for (const CompareTie& tie : results.ties) {
    if (tie.servers || tie.workers != workers) continue;
    const std::string how = fmt::format("with {} {}", tie.beside, rates_text(tie.rates));
    const auto same =
        std::ranges::find(phrases, how, &std::pair<std::string, std::vector<std::string>>::first);
    if (same == phrases.end())
      phrases.push_back({how, {tie.kind}});
    else
      same->second.push_back(tie.kind);
  }
  std::vector<std::string> parts;
  for (const auto& [how, kinds] : phrases)
    parts.push_back(fmt::format("{} {} {}", join(kinds, " and "), kinds.size() == 1 ? "ties" : "tie", how));
  return join(parts, ", ");
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

/// "A, B and C".
std::string enumeration(std::vector<std::string> parts) {
  if (parts.size() < 2) return join(parts, "");
  const std::string last = std::move(parts.back());
  parts.pop_back();
  return fmt::format("{} and {}", join(parts, ", "), last);
}

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

/// Of layouts of so many workers over a link: which is the fastest, and what is not told apart from it, what
/// is predicted (`ties`), and whether all have the same bits. A sentence each.
std::vector<std::string> sentences_about(const CompareResults& results, const std::string& link, int workers,
                                         const std::string& ties) {
  std::vector<const CompareRow*> found;
  for (const CompareRow& row : results.rows)
    if (row.link == link && row.workers == workers && !row.samples.empty()) found.push_back(&row);
  std::ranges::stable_sort(found, {}, [](const CompareRow* row) { return row->step_ms(); });
  const CompareRow& fastest = *found[0];
  std::vector<const CompareRow*> slower, alike;
  for (size_t i = 1; i < found.size(); ++i)
    (is_told_apart(fastest, *found[i]) ? slower : alike).push_back(found[i]);

  std::vector<std::string> beside, beside_alike;
  for (size_t i = 0; i < slower.size(); ++i)
    // Of many the next and the slowest: the table has all.
    if (slower.size() < kMostNamed || i == 0 || i + 1 == slower.size())
      beside.push_back(fmt::format("{:.2f} times as fast as {}", slower[i]->step_ms() / fastest.step_ms(),
                                   slower[i]->kind));
  const std::string between =
      slower.size() < kMostNamed ? "" : fmt::format(", with {} between them", slower.size() - 2);
  for (size_t i = 0; i < std::min(alike.size(), kMostNamed); ++i)
    beside_alike.push_back(fmt::format("{} ({:.2f} ms, {} run{})", alike[i]->kind, alike[i]->step_ms(),
                                       alike[i]->samples.size(), alike[i]->samples.size() == 1 ? "" : "s"));
  if (alike.size() > kMostNamed) beside_alike.push_back(fmt::format("{} more", alike.size() - kMostNamed));

  const std::string place = link.empty() ? "" : link_text(results, link);
  std::vector<std::string> sentences{
      fmt::format("{}{} {} worker{} {} {} {:.2f} ms{}{}{}.", place, place.empty() ? "With" : "with", workers,
                  workers == 1 ? "" : "s", fastest.kind,
                  alike.empty() ? "is the fastest, with steps of" : "has the shortest steps, of",
                  fastest.step_ms(), beside.empty() ? "" : ": ", enumeration(beside), between)};
  if (!alike.empty())
    sentences.push_back(fmt::format("The runs do not tell it apart from {}.", enumeration(beside_alike)));
  if (!ties.empty()) sentences.push_back(fmt::format("By prediction, {}.", ties));
  sentences.push_back(capitalised(proofs_of(found)) + ".");
  return sentences;
}

}  // namespace

std::string sentence_of(const CompareTie& tie) {
  const std::string with = fmt::format("with {} workers {}", tie.workers, tie.kind);
  if (!tie.servers) return fmt::format("{} ties with {} {}", with, tie.beside, rates_text(tie.rates));
  const std::string over = tie.link.empty() ? "these hosts" : tie.link == "none" ? "a free link" : tie.link;
  return fmt::format("{} over {}: beside {} {}", with, over, tie.beside, servers_text(tie));
}

std::vector<std::string> CompareResults::answers() const {
  std::vector<std::string> sentences;
  std::vector<int> told;  // numbers of workers of whose ties something is said
  for (const std::string& link : links()) {
    const int workers = most_workers(rows, link);
    if (workers == 0) continue;
    const bool is_told = std::ranges::find(told, workers) != told.end();
    const auto found = sentences_about(*this, link, workers, is_told ? "" : ties_of(*this, workers));
    sentences.insert(sentences.end(), found.begin(), found.end());
    told.push_back(workers);
  }
  std::vector<std::string> others;
  for (const CompareTie& tie : ties) {
    if (std::ranges::find(told, tie.workers) != told.end()) continue;
    told.push_back(tie.workers);
    if (const std::string text = ties_of(*this, tie.workers); !text.empty())
      others.push_back(fmt::format("with {} workers {}", tie.workers, text));
  }
  if (!others.empty()) sentences.push_back(fmt::format("By prediction, {}.", join(others, "; ")));
  if (sentences.empty())
    sentences.push_back("There are not yet two layouts with equal numbers of workers to compare.");
  else if (!ties.empty())
    sentences.push_back("Predicted ties assume that each process has its own host and core.");
  return sentences;
}

std::string CompareResults::headline() const { return join(answers(), " "); }

}  // namespace lockstep::compare
