#include "compare/bench_report.h"

#include <fmt/format.h>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "train/start/machine_figures.h"

namespace lockstep::compare {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<comm::SumTime>& sums) {
  Json json = Json::array();
  for (const comm::SumTime& sum : sums) json.push_back({{"bytes", sum.bytes}, {"seconds", sum.seconds}});
  return json;
}

std::vector<comm::SumTime> sums_from(const Json& json) {
  std::vector<comm::SumTime> sums;
  for (const Json& sum : json)
    sums.push_back({.bytes = sum.at("bytes").get<int64_t>(), .seconds = sum.at("seconds").get<double>()});
  return sums;
}

Json to_json(const ops::ArithmeticSpeed& speed) {
  return {{"instruction_set", speed.instruction_set},
          {"peak_flops", speed.peak},
          {"products_flops", speed.products},
          {"attention_flops", speed.attention},
          {"below_half", ops::below_half(speed)}};
}

ops::ArithmeticSpeed arithmetic_from(const Json& json) {
  return {.instruction_set = json.at("instruction_set").get<std::string>(),
          .peak = json.at("peak_flops").get<double>(),
          .products = json.at("products_flops").get<double>(),
          .attention = json.at("attention_flops").get<double>()};
}

std::string rate(double seconds_per_byte) {
  return seconds_per_byte > 0 ? human_bytes(static_cast<int64_t>(1 / seconds_per_byte)) + "/s" : "-";
}

std::string table_of(const std::string& title, const std::vector<comm::SumTime>& sums) {
  if (sums.empty()) return "";
  std::string text = fmt::format("\n{}\n{:>14}  {:>12}  {:>14}\n", title, "size", "time", "bytes of it");
  for (const comm::SumTime& sum : sums)
    text += fmt::format("{:>14}  {:>12}  {:>14}\n", human_bytes(sum.bytes), human_seconds(sum.seconds),
                        rate(sum.seconds / static_cast<double>(sum.bytes)));
  return text;
}

}  // namespace

plan::MachineFigures BenchReport::figures() const {
  return train::machine_figures(hosts, pairs, shared_sums, addition_per_byte);
}

std::string BenchReport::table() const {
  std::string text = fmt::format("{:>8}  {:<6}  {:>10}  {:>14}  {:>16}\n", "ranks", "host", "latency",
                                 "one way", "each of both ways");
  for (const comm::PairTimes& pair : pairs)
    text +=
        fmt::format("{:>8}  {:<6}  {:>10}  {:>14}  {:>16}\n", fmt::format("0, {}", pair.peer),
                    nth(hosts, pair.peer) == hosts.front() ? "same" : "other", human_seconds(pair.latency),
                    rate(pair.one_way_per_byte), rate(pair.both_ways_per_byte));
  if (pairs.empty()) text = "one process, which sends nothing\n";
  text += table_of(fmt::format("all-reduce of {} ranks by messages", hosts.size()), sums);
  text += table_of(fmt::format("all-reduce of {} ranks through shared memory", hosts.size()), shared_sums);
  text += fmt::format("\nadding arrays in memory: {} of sums\n", rate(addition_per_byte));
  if (!arithmetic) return text;
  text += "arithmetic: " + ops::to_text(*arithmetic) + "\n";
  const std::vector<std::string> slow = ops::below_half(*arithmetic);
  return slow.empty()
             ? text
             : text + fmt::format("warning: below half of what the processor can do: {}\n", join(slow, ", "));
}

Json to_json(const BenchReport& report) {
  Json json{{"hosts", report.hosts}, {"pairs", Json::array()}};
  for (const comm::PairTimes& pair : report.pairs)
    json["pairs"].push_back({{"ranks", {0, pair.peer}},
                             {"latency_seconds", pair.latency},
                             {"one_way_seconds_per_byte", pair.one_way_per_byte},
                             {"both_ways_seconds_per_byte", pair.both_ways_per_byte}});
  json["all_reduce"] = to_json(report.sums);
  json["all_reduce_shared_memory"] = to_json(report.shared_sums);
  json["addition_seconds_per_byte"] = report.addition_per_byte;
  if (report.arithmetic) json["arithmetic"] = to_json(*report.arithmetic);
  return json;
}

BenchReport bench_report_from(const Json& json) {
  try {
    BenchReport report{.hosts = json.at("hosts").get<std::vector<int>>(),
                       .sums = sums_from(json.at("all_reduce")),
                       .shared_sums = sums_from(json.at("all_reduce_shared_memory")),
                       .addition_per_byte = json.at("addition_seconds_per_byte").get<double>()};
    for (const Json& pair : json.at("pairs"))
      report.pairs.push_back({.peer = pair.at("ranks").at(1).get<int>(),
                              .latency = pair.at("latency_seconds").get<double>(),
                              .one_way_per_byte = pair.at("one_way_seconds_per_byte").get<double>(),
                              .both_ways_per_byte = pair.at("both_ways_seconds_per_byte").get<double>()});
    if (json.contains("arithmetic")) report.arithmetic = arithmetic_from(json.at("arithmetic"));
    return report;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("is not output of lockstep bench: {}", error.what()));
  }
}

}  // namespace lockstep::compare
