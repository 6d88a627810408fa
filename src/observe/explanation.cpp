#include "observe/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_number.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kExplanationVersion = 1;
/// For people: kinds of ops that take less are one line.
constexpr double kLeastShare = 0.005;

double sum_of(const NamedTimes& times) {
  return std::accumulate(times.begin(), times.end(), 0.0,
                         [](double sum, const auto& time) { return sum + time.second; });
}

/// A sample does not tell by how much ranks differ.
double working_ms(const RankTime& time) {
  return (time.tells_computing ? sum_of(time.computing_ms) : 0) + time.data_wait_ms;
}

void sort_by_time(NamedTimes& times) {
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& one, const auto& other) { return one.second > other.second; });
}

OrderedJson json_of(const NamedTimes& times) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, ms] : times) json[name] = ms;
  return json;
}

NamedTimes times_of(const OrderedJson& json) {
  NamedTimes times;
  for (const auto& [name, ms] : json.items()) times.emplace_back(name, ms.get<double>());
  return times;
}

std::optional<double> number_of(const OrderedJson& json, const char* name) {
  return json.contains(name) ? std::optional(json.at(name).get<double>()) : std::nullopt;
}

RankExplanation explain_rank(const RankTime& time, double slowest_ms) {
  const auto phase = [&](RunPhase of) { return nth(time.phases_ms, static_cast<int>(of)); };
  RankExplanation rank{.rank = time.rank,
                       .only_serves = time.stage < 0,
                       .computing_ms = time.computing_ms,
                       .preparing_ms = time.preparing_ms,
                       .speed_of_light = time.speed_of_light,
                       .flops_utilization = time.flops_utilization};
  rank.wall_ms = std::accumulate(time.phases_ms.begin(), time.phases_ms.end(), 0.0);
  const auto part = [&](TimePart of) -> double& { return nth(rank.parts_ms, static_cast<int>(of)); };
  part(TimePart::start) = phase(RunPhase::start);
  part(TimePart::evaluation) = phase(RunPhase::evaluation);
  part(TimePart::checkpoints) = phase(RunPhase::checkpoints);
  part(TimePart::end) = phase(RunPhase::end);
  part(TimePart::slower_ranks) = std::clamp(slowest_ms - working_ms(time), 0.0, time.waited_ms);
  part(TimePart::communication) = time.waited_ms - part(TimePart::slower_ranks) + time.handling_ms;
  part(TimePart::bubble) = time.stage_wait_ms;
  part(TimePart::data) = time.data_wait_ms;
  const double left = std::max(
      phase(RunPhase::steps) - time.waited_ms - time.handling_ms - time.stage_wait_ms - time.data_wait_ms,
      0.0);
  const double computing = sum_of(time.computing_ms);
  if (time.tells_computing) {
    part(TimePart::compute) = computing;
    part(TimePart::host) = std::max(left - computing, 0.0);
  } else {
    const bool has_sample = computing > 0;
    part(TimePart::compute) = has_sample ? std::min(computing, left) : left;
    part(TimePart::host) = left - part(TimePart::compute);
    // Sampled steps are a little slower than others.
    for (auto& [name, ms] : rank.computing_ms) ms *= part(TimePart::compute) / std::max(computing, 1e-9);
  }
  sort_by_time(rank.computing_ms);
  sort_by_time(rank.preparing_ms);
  return rank;
}

OrderedJson json_of(const RankExplanation& rank) {
  OrderedJson json{{"rank", rank.rank}, {"wall_ms", rank.wall_ms}};
  if (rank.only_serves) json["only_serves"] = true;
  for (int part = 0; part < kTimeParts; ++part)
    json["parts_ms"][std::string(name_of(static_cast<TimePart>(part)))] = nth(rank.parts_ms, part);
  for (int part = 0; part < kTimeParts; ++part)
    json["shares"][std::string(name_of(static_cast<TimePart>(part)))] =
        rank.share(static_cast<TimePart>(part));
  json["explained"] = rank.explained();
  json["computing_ms"] = json_of(rank.computing_ms);
  if (!rank.preparing_ms.empty()) json["preparing_ms"] = json_of(rank.preparing_ms);
  if (rank.speed_of_light) json["speed_of_light"] = *rank.speed_of_light;
  if (rank.flops_utilization) json["mfu"] = *rank.flops_utilization;
  return json;
}

RankExplanation rank_of(const OrderedJson& json) {
  RankExplanation rank{.rank = demand_whole_number<int>(json.at("rank")),
                       .only_serves = json.value("only_serves", false),
                       .wall_ms = json.at("wall_ms").get<double>()};
  for (int part = 0; part < kTimeParts; ++part)
    nth(rank.parts_ms, part) =
        json.at("parts_ms").at(std::string(name_of(static_cast<TimePart>(part)))).get<double>();
  rank.computing_ms = times_of(json.at("computing_ms"));
  if (json.contains("preparing_ms")) rank.preparing_ms = times_of(json.at("preparing_ms"));
  rank.speed_of_light = number_of(json, "speed_of_light");
  rank.flops_utilization = number_of(json, "mfu");
  return rank;
}

/// Of a mean: only if all workers know it.
std::optional<double> mean_of(const std::vector<RankExplanation>& ranks,
                              std::optional<double> RankExplanation::*value) {
  double sum = 0;
  for (const RankExplanation& rank : ranks) {
    if (!(rank.*value)) return {};
    sum += *(rank.*value);
  }
  return sum / static_cast<double>(ranks.size());
}

/// What threads that prepare data do; only if steps wait for them.
std::string preparing_row(const RankExplanation& rank) {
  const double all = sum_of(rank.preparing_ms);
  if (all <= 0 || rank.share(TimePart::data) < kLeastShare) return "";
  std::string stages;
  for (const auto& [stage, ms] : rank.preparing_ms)
    stages += fmt::format("{}{} {:.0f} %", stages.empty() ? "" : ", ", stage, 100 * ms / all);
  return fmt::format("  threads that prepare it: {}\n", stages);
}

std::string computing_rows(const RankExplanation& rank) {
  std::string text;
  double few = 0;
  for (const auto& [name, ms] : rank.computing_ms)
    if (ms >= kLeastShare * rank.wall_ms)
      text += fmt::format("    {:<24}{:>7.1f} %\n", name, 100 * ms / rank.wall_ms);
    else
      few += ms;
  if (few > 0) text += fmt::format("    {:<24}{:>7.1f} %\n", "others", 100 * few / rank.wall_ms);
  return text;
}

}  // namespace

std::string_view name_of(TimePart part) {
  constexpr std::array<std::string_view, kTimeParts> kNames = {
      "start",        "compute", "communication", "bubble",      "data",
      "slower_ranks", "host",    "evaluation",    "checkpoints", "end"};
  return nth(kNames, static_cast<int>(part));
}

std::string to_text(const RankTime& time) {
  OrderedJson json{{"rank", time.rank},
                   {"stage", time.stage},
                   {"phases", time.phases_ms},
                   {"tells", time.tells_computing},
                   {"sampled", time.sampled_steps},
                   {"computing", json_of(time.computing_ms)},
                   {"preparing", json_of(time.preparing_ms)},
                   {"waited", time.waited_ms},
                   {"stage_wait", time.stage_wait_ms},
                   {"handling", time.handling_ms},
                   {"data", time.data_wait_ms}};
  if (time.speed_of_light) json["speed_of_light"] = *time.speed_of_light;
  if (time.flops_utilization) json["mfu"] = *time.flops_utilization;
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RankTime rank_time_from_text(std::string_view text) try {
  const OrderedJson json = OrderedJson::parse(text);
  return {.rank = demand_whole_number<int>(json.at("rank")),
          .stage = demand_whole_number<int>(json.at("stage")),
          .phases_ms = json.at("phases").get<std::array<double, kRunPhases>>(),
          .tells_computing = json.at("tells").get<bool>(),
          .sampled_steps = json.at("sampled").get<int64_t>(),
          .computing_ms = times_of(json.at("computing")),
          .preparing_ms = times_of(json.at("preparing")),
          .waited_ms = json.at("waited").get<double>(),
          .stage_wait_ms = json.at("stage_wait").get<double>(),
          .handling_ms = json.at("handling").get<double>(),
          .data_wait_ms = json.at("data").get<double>(),
          .speed_of_light = number_of(json, "speed_of_light"),
          .flops_utilization = number_of(json, "mfu")};
} catch (const OrderedJson::exception& error) {
  throw DataError(fmt::format("a rank's times cannot be read: {}", error.what()));
}

double RankExplanation::explained() const {
  return wall_ms > 0 ? std::accumulate(parts_ms.begin(), parts_ms.end(), 0.0) / wall_ms : 1;
}

std::vector<RankExplanation> Explanation::workers() const {
  std::vector<RankExplanation> workers;
  std::ranges::copy_if(ranks, std::back_inserter(workers),
                       [](const auto& rank) { return !rank.only_serves; });
  return workers.empty() ? ranks : workers;
}

RankExplanation Explanation::mean() const {
  const std::vector<RankExplanation> workers = this->workers();
  RankExplanation mean{.rank = -1};
  std::map<std::string, double> computing, preparing;
  const auto count = static_cast<double>(workers.size());
  for (const RankExplanation& rank : workers) {
    mean.wall_ms += rank.wall_ms / count;
    for (int part = 0; part < kTimeParts; ++part)
      nth(mean.parts_ms, part) += nth(rank.parts_ms, part) / count;
    for (const auto& [name, ms] : rank.computing_ms) computing[name] += ms / count;
    for (const auto& [name, ms] : rank.preparing_ms) preparing[name] += ms / count;
  }
  mean.computing_ms.assign(computing.begin(), computing.end());
  sort_by_time(mean.computing_ms);
  mean.preparing_ms.assign(preparing.begin(), preparing.end());
  sort_by_time(mean.preparing_ms);
  mean.speed_of_light = mean_of(workers, &RankExplanation::speed_of_light);
  mean.flops_utilization = mean_of(workers, &RankExplanation::flops_utilization);
  return mean;
}

const RankExplanation& Explanation::slowest() const {
  const auto works = [](const RankExplanation& rank) {
    return rank.only_serves ? -1.0 : rank.part_ms(TimePart::compute) + rank.part_ms(TimePart::data);
  };
  return *std::max_element(ranks.begin(), ranks.end(),
                           [&](const auto& one, const auto& other) { return works(one) < works(other); });
}

Explanation explain(std::span<const RankTime> ranks, int64_t step, bool goes_on) {
  std::map<int, double> slowest;  // by stage
  for (const RankTime& time : ranks)
    if (time.stage >= 0) slowest[time.stage] = std::max(slowest[time.stage], working_ms(time));
  Explanation explanation{.step = step, .goes_on = goes_on, .ranks = {}, .notes = {}};
  bool tells = true;
  int64_t sampled = step;
  for (const RankTime& time : ranks) {
    explanation.ranks.push_back(explain_rank(time, time.stage >= 0 ? slowest[time.stage] : 0));
    tells &= time.tells_computing;
    if (!time.tells_computing && time.stage >= 0) sampled = std::min(sampled, time.sampled_steps);
  }
  if (!tells)
    explanation.notes.push_back(
        sampled == 0
            ? "compute includes launches and the host: lanes are streams, and no step was sampled"
            : fmt::format("compute is that of {} of {} steps, in which each kernel was timed: lanes are "
                          "streams",
                          sampled, step));
  if (goes_on)
    explanation.notes.push_back(
        "the run goes on: of rank 0 alone, whose waiting for slower ranks counts as communication");
  return explanation;
}

std::string to_json(const Explanation& explanation) {
  OrderedJson json{{"format", "lockstep explanation"},
                   {"version", kExplanationVersion},
                   {"step", explanation.step},
                   {"goes_on", explanation.goes_on},
                   {"notes", explanation.notes}};
  if (!explanation.ranks.empty()) {
    json["slowest_rank"] = explanation.slowest().rank;
    json["mean"] = json_of(explanation.mean());
    json["mean"].erase("rank");
  }
  json["ranks"] = OrderedJson::array();
  for (const RankExplanation& rank : explanation.ranks) json["ranks"].push_back(json_of(rank));
  json["advice"] = OrderedJson::array();
  for (const Advice& one : explanation.advice)
    json["advice"].push_back({{"rule", one.rule}, {"saw", one.saw}, {"cost", one.cost}, {"act", one.act}});
  return json.dump();
}

Explanation explanation_from_json(std::string_view text) try {
  const OrderedJson json = OrderedJson::parse(text);
  if (!json.is_object() || json.value("format", "") != "lockstep explanation")
    throw DataError("this is no explanation that lockstep wrote");
  if (json.at("version") != kExplanationVersion)
    throw DataError(fmt::format("the explanation has version {}; this lockstep reads version {}",
                                json.at("version").dump(), kExplanationVersion));
  Explanation explanation{.step = demand_whole_number<int64_t>(json.at("step")),
                          .goes_on = json.at("goes_on").get<bool>(),
                          .ranks = {},
                          .notes = json.at("notes").get<std::vector<std::string>>(),
                          .advice = {}};
  for (const OrderedJson& one : json.value("advice", OrderedJson::array()))
    explanation.advice.push_back({.rule = one.at("rule").get<std::string>(),
                                  .saw = one.at("saw").get<std::string>(),
                                  .cost = one.at("cost").get<double>(),
                                  .act = one.at("act").get<std::string>()});
  for (const OrderedJson& rank : json.at("ranks")) explanation.ranks.push_back(rank_of(rank));
  if (explanation.ranks.empty()) throw DataError("the explanation is of no rank");
  return explanation;
} catch (const OrderedJson::exception& error) {
  throw DataError(fmt::format("the explanation cannot be read: {}", error.what()));
}

std::string light_text(const RankExplanation& rank) {
  if (!rank.speed_of_light) return "";
  return fmt::format(
      "{:.0f} % of the speed of light{}", 100 * *rank.speed_of_light,
      rank.flops_utilization ? fmt::format(", MFU {:.0f} %", 100 * *rank.flops_utilization) : "");
}

std::string describe(const Explanation& explanation) {
  const RankExplanation mean = explanation.mean();
  const RankExplanation& slowest = explanation.slowest();
  const bool several = explanation.ranks.size() > 1;
  std::string text = fmt::format("{} steps, {:.1f} s from the start of the process{}\n\n", explanation.step,
                                 mean.wall_ms / 1000, explanation.goes_on ? " until now" : "");
  if (several) text += fmt::format("{:<28}{:>9}{:>16}\n", "", "mean", fmt::format("rank {}", slowest.rank));
  for (int part = 0; part < kTimeParts; ++part) {
    const auto of = static_cast<TimePart>(part);
    text += fmt::format("{:<28}{:>7.1f} %", name_of(of), 100 * mean.share(of));
    if (several) text += fmt::format("{:>14.1f} %", 100 * slowest.share(of));
    text += "\n";
    if (of == TimePart::compute) text += computing_rows(mean);
    if (of == TimePart::data) text += preparing_row(mean);
  }
  text += fmt::format("{:<28}{:>7.1f} %\n", "sum", 100 * mean.explained());
  if (const std::string light = light_text(mean); !light.empty()) text += "\n" + light + "\n";
  for (const std::string& note : explanation.notes) text += "note: " + note + "\n";
  for (const Advice& one : explanation.advice)
    text += fmt::format("\n{}{}\n    {}\n", one.cost > 0 ? fmt::format("{:.0f} %: ", 100 * one.cost) : "",
                        one.saw, one.act);
  return text;
}

std::string summary(const Explanation& explanation) {
  const RankExplanation mean = explanation.mean();
  NamedTimes shares;
  for (int part = 0; part < kTimeParts; ++part) {
    std::string name(name_of(static_cast<TimePart>(part)));
    std::replace(name.begin(), name.end(), '_', ' ');
    shares.emplace_back(std::move(name), mean.share(static_cast<TimePart>(part)));
  }
  sort_by_time(shares);
  constexpr size_t kMost = 4;  // a line of a terminal
  if (shares.size() > kMost) shares.resize(kMost);
  std::string text;
  for (const auto& [name, share] : shares)
    if (share >= 0.01) text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * share);
  return text;
}

}  // namespace lockstep::observe
