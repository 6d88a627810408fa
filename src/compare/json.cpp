#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/json_number.h"
#include "compare/results.h"
#include "lockstep/error.h"

namespace lockstep::compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 5;
constexpr std::array<std::string_view, 5> kProofNames = {"not tried", "identical", "DIFFERENT",
                                                         "other mathematics", "failed"};

constexpr std::pair<const char*, double CompareSample::*> kSampleFields[] = {
    {"step_ms", &CompareSample::step_ms},
    {"exposed_comm_ms", &CompareSample::exposed_comm_ms},
    {"data_wait_ms", &CompareSample::data_wait_ms},
    {"compute_ms", &CompareSample::compute_ms},
    {"bubble_ms", &CompareSample::bubble_ms},
    {"server_ms", &CompareSample::server_ms},
    {"samples_per_second", &CompareSample::samples_per_second},
    {"sent_bytes_per_step", &CompareSample::sent_bytes_per_step},
    {"link_bytes_per_step", &CompareSample::link_bytes_per_step},
    {"hosts", &CompareSample::hosts},
    {"server_busy", &CompareSample::server_busy},
    {"staleness_mean", &CompareSample::staleness_mean},
    {"train_loss", &CompareSample::train_loss},
    {"straggler_step_ms", &CompareSample::straggler_step_ms}};

/// JSON has no numbers that are not finite.
Json to_json(double number) { return std::isfinite(number) ? Json(number) : Json(nullptr); }
double number_from(const Json& json, double otherwise = std::numeric_limits<double>::quiet_NaN()) {
  return json.is_null() ? otherwise : json.get<double>();
}

Json to_json(const std::vector<HostTraffic>& traffic) {
  Json json = Json::array();
  for (const HostTraffic& host : traffic)
    json.push_back({{"host", host.host}, {"sent", host.sent}, {"received", host.received}});
  return json;
}

std::vector<HostTraffic> traffic_from(const Json& json) {
  std::vector<HostTraffic> traffic;
  for (const Json& host : json)
    traffic.push_back({.host = host.at("host").get<std::string>(),
                       .sent = host.at("sent").get<double>(),
                       .received = host.at("received").get<double>()});
  return traffic;
}

Json to_json(const CompareSample& sample) {
  Json json{{"round", sample.round}};
  for (const auto& [name, field] : kSampleFields) json[name] = to_json(sample.*field);
  json["links"] = to_json(sample.traffic);
  if (sample.staleness_bound) json["staleness_bound"] = *sample.staleness_bound;
  json["staleness_max"] = sample.staleness_max;
  json["staleness_histogram"] = sample.staleness_histogram;
  return json;
}

CompareSample sample_from(const Json& json) {
  CompareSample sample{.round = demand_whole_number<int>(json.at("round"))};
  for (const auto& [name, field] : kSampleFields) sample.*field = number_from(json.at(name));
  sample.traffic = traffic_from(json.at("links"));
  if (json.contains("staleness_bound"))
    sample.staleness_bound = demand_whole_number<int>(json.at("staleness_bound"));
  sample.staleness_max = demand_whole_number<int64_t>(json.at("staleness_max"));
  for (const Json& count : json.at("staleness_histogram"))
    sample.staleness_histogram.push_back(demand_whole_number<int64_t>(count));
  return sample;
}

Json to_json(const CompareKill& kill) {
  Json json{
      {"seconds", kill.seconds}, {"undisturbed_seconds", kill.undisturbed_seconds}, {"starts", kill.starts}};
  if (!kill.failure.empty()) json["failure"] = kill.failure;
  return json;
}

CompareKill kill_from(const Json& json) {
  return {.seconds = json.at("seconds").get<double>(),
          .undisturbed_seconds = json.at("undisturbed_seconds").get<double>(),
          .starts = demand_whole_number<int>(json.at("starts")),
          .failure = json.value("failure", "")};
}

Json to_json(const CompareRow& row) {
  Json json{{"link", row.link},
            {"workers", row.workers},
            {"layout", layout::to_string(row.layout)},
            {"kind", row.kind},
            {"processes", row.layout.world_size()},
            {"global_batch", row.global_batch},
            {"link_bytes_theory", row.link_bytes_theory},
            {"links_theory", to_json(row.links_theory)},
            {"predicted_ms", row.predicted_ms},
            {"proof", name_of(row.proof)}};
  if (!row.proof_detail.empty()) json["proof_detail"] = row.proof_detail;
  if (!row.math_hash.empty()) json["math_hash"] = row.math_hash;
  if (row.kill) json["kill"] = to_json(*row.kill);
  if (!row.samples.empty()) {
    const Interval interval = row.step_interval();
    json["step_ms"] = {{"median", row.step_ms()}, {"low", interval.low}, {"high", interval.high}};
    json["samples_per_second"] = row.samples_per_second();
  }
  json["samples"] = Json::array();
  for (const CompareSample& sample : row.samples) json["samples"].push_back(to_json(sample));
  json["losses"] = Json::array();
  for (const CompareLoss& loss : row.losses)
    json["losses"].push_back({{"samples", loss.samples}, {"loss", to_json(loss.loss)}});
  if (!row.failure.empty()) json["failure"] = row.failure;
  return json;
}

CompareRow row_from(const Json& json) {
  CompareRow row{.link = json.at("link").get<std::string>(),
                 .workers = demand_whole_number<int>(json.at("workers")),
                 .layout = layout::parse_layout(json.at("layout").get<std::string>()),
                 .kind = json.at("kind").get<std::string>(),
                 .global_batch = demand_whole_number<int64_t>(json.at("global_batch")),
                 .link_bytes_theory = json.at("link_bytes_theory").get<double>(),
                 .links_theory = traffic_from(json.at("links_theory")),
                 .proof_detail = json.value("proof_detail", ""),
                 .math_hash = json.value("math_hash", ""),
                 .failure = json.value("failure", ""),
                 .predicted_ms = json.at("predicted_ms").get<double>()};
  const auto proof = std::ranges::find(kProofNames, json.at("proof").get<std::string>());
  if (proof == kProofNames.end()) throw DataError("a proof of no known kind");
  row.proof = static_cast<CompareProof>(proof - kProofNames.begin());
  if (json.contains("kill")) row.kill = kill_from(json.at("kill"));
  for (const Json& sample : json.at("samples")) row.samples.push_back(sample_from(sample));
  for (const Json& loss : json.at("losses"))
    row.losses.push_back({demand_whole_number<int64_t>(loss.at("samples")), number_from(loss.at("loss"))});
  return row;
}

Json to_json(const CompareTie& tie) {
  Json json{{"workers", tie.workers}, {"kind", tie.kind}, {"beside", tie.beside}};
  if (!tie.servers) {
    json["rates"] = Json::array();
    for (const plan::RateRange& range : tie.rates)
      json["rates"].push_back({{"from", range.from}, {"to", range.to}});
    return json;
  }
  json["link"] = tie.link;
  json["servers"] = Json::array();
  for (const plan::CountRange& range : tie.servers->counts)
    json["servers"].push_back({{"from", range.from}, {"to", range.to}});
  json["servers_tried"] = tie.servers->tried;
  return json;
}

CompareTie tie_from(const Json& json) {
  CompareTie tie{.workers = demand_whole_number<int>(json.at("workers")),
                 .kind = json.at("kind").get<std::string>(),
                 .beside = json.at("beside").get<std::string>(),
                 .rates = {},
                 .link = json.value("link", "")};
  if (!json.contains("servers")) {
    for (const Json& range : json.at("rates"))
      tie.rates.push_back({.from = range.at("from").get<double>(), .to = range.at("to").get<double>()});
    return tie;
  }
  tie.servers.emplace().tried = demand_whole_number<int>(json.at("servers_tried"));
  for (const Json& range : json.at("servers"))
    tie.servers->counts.push_back(
        {.from = demand_whole_number<int>(range.at("from")), .to = demand_whole_number<int>(range.at("to"))});
  return tie;
}

Json to_json(const CompareLink& link) {
  Json json{{"link", link.link},
            {"latency_seconds", link.latency_seconds},
            {"one_way_bits_per_second", link.one_way_bits_per_second},
            {"both_ways_bits_per_second", link.both_ways_bits_per_second},
            {"all_reduce", Json::array()}};
  for (const auto& [bytes, seconds] : link.all_reduce)
    json["all_reduce"].push_back({{"bytes", bytes}, {"seconds", seconds}});
  return json;
}

CompareLink link_from(const Json& json) {
  CompareLink link{.link = json.at("link").get<std::string>(),
                   .latency_seconds = json.at("latency_seconds").get<double>(),
                   .one_way_bits_per_second = json.at("one_way_bits_per_second").get<double>(),
                   .both_ways_bits_per_second = json.at("both_ways_bits_per_second").get<double>(),
                   .all_reduce = {}};
  for (const Json& sum : json.at("all_reduce"))
    link.all_reduce.emplace_back(demand_whole_number<int64_t>(sum.at("bytes")),
                                 sum.at("seconds").get<double>());
  return link;
}

/// As a field of CSV: one line, in quotes.
std::string csv_text(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c == '\n' ? ' ' : c);
  return field + "\"";
}

}  // namespace

std::string_view name_of(CompareProof proof) { return kProofNames[static_cast<size_t>(proof)]; }

std::string CompareResults::csv() const {
  std::string text = "link,workers,layout,processes,global_batch,proof,predicted_ms,round";
  for (const auto& [name, field] : kSampleFields) text += fmt::format(",{}", name);
  text += ",failure\n";
  for (const CompareRow& row : rows) {
    const std::string about =
        fmt::format("{},{},\"{}\",{},{},{},{}", row.link, row.workers, layout::to_string(row.layout),
                    row.layout.world_size(), row.global_batch, name_of(row.proof), row.predicted_ms);
    for (const CompareSample& sample : row.samples) {
      text += fmt::format("{},{}", about, sample.round);
      for (const auto& [name, field] : kSampleFields) text += fmt::format(",{}", sample.*field);
      text += ",\n";
    }
    if (row.failure.empty()) continue;
    text += about + std::string(1 + std::size(kSampleFields), ',') + "," + csv_text(row.failure) + "\n";
  }
  return text;
}

Json to_json(const CompareResults& results) {
  Json json{{"format", kFormat},
            {"headline", results.headline()},
            {"answers", results.answers()},
            {"command", results.command},
            {"config", results.config},
            {"config_hash", results.config_hash},
            {"version", results.version},
            {"host", results.host},
            {"cores", results.cores},
            {"device", results.device},
            {"hostfile", results.hosts_text},
            {"ranks", results.ranks},
            {"machine", {{"cpu", results.cpu}, {"kernel", results.kernel}, {"mpirun", results.mpirun}}},
            {"threads", results.threads},
            {"server_threads", results.server_threads},
            {"data", results.data},
            {"seed", results.seed},
            {"element_type", results.element_type},
            {"straggler", results.straggler},
            {"kill_rank", results.kill_rank},
            {"target_loss", results.target_loss},
            {"price", results.price},
            {"began", results.began},
            {"scaling", results.weak ? "weak" : "strong"},
            {"steps", results.steps},
            {"proof_steps", results.proof_steps},
            {"rows", Json::array()},
            {"forecasts", Json::array()},
            {"ties", Json::array()},
            {"links", Json::array()}};
  if (const std::optional<double> error = results.prediction_error()) json["prediction_error"] = *error;
  for (const CompareRow& row : results.rows) json["rows"].push_back(to_json(row));
  for (const CompareRow& row : results.forecasts) json["forecasts"].push_back(to_json(row));
  for (const CompareTie& tie : results.ties) json["ties"].push_back(to_json(tie));
  for (const CompareLink& link : results.measured_links) json["links"].push_back(to_json(link));
  return json;
}

CompareResults compare_results_from_text(const std::string& text, const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (demand_whole_number<int>(json.at("format")) != kFormat)
      throw DataError("it is from another version of lockstep");
    CompareResults results{.command = json.at("command").get<std::string>(),
                           .config = json.at("config").get<std::string>(),
                           .config_hash = json.at("config_hash").get<std::string>(),
                           .version = json.at("version").get<std::string>(),
                           .host = json.at("host").get<std::string>(),
                           .began = json.at("began").get<std::string>(),
                           .weak = json.at("scaling").get<std::string>() == "weak",
                           .steps = demand_whole_number<int64_t>(json.at("steps")),
                           .proof_steps = demand_whole_number<int64_t>(json.at("proof_steps")),
                           .cores = demand_whole_number<int>(json.at("cores")),
                           .straggler = json.at("straggler").get<std::string>(),
                           .target_loss = json.at("target_loss").get<double>(),
                           .device = json.at("device").get<std::string>(),
                           .hosts_text = json.at("hostfile").get<std::string>(),
                           .price = json.at("price").get<double>(),
                           .cpu = json.at("machine").at("cpu").get<std::string>(),
                           .kernel = json.at("machine").at("kernel").get<std::string>(),
                           .mpirun = json.at("machine").at("mpirun").get<std::string>(),
                           .data = json.at("data").get<std::string>(),
                           .element_type = json.at("element_type").get<std::string>(),
                           .seed = demand_whole_number<uint64_t>(json.at("seed")),
                           .threads = demand_whole_number<int>(json.at("threads")),
                           .server_threads = demand_whole_number<int>(json.at("server_threads")),
                           .kill_rank = demand_whole_number<int>(json.at("kill_rank")),
                           .ranks = json.value("ranks", "")};
    for (const Json& row : json.at("rows")) results.rows.push_back(row_from(row));
    for (const Json& row : json.at("forecasts")) results.forecasts.push_back(row_from(row));
    for (const Json& tie : json.at("ties")) results.ties.push_back(tie_from(tie));
    for (const Json& link : json.at("links")) results.measured_links.push_back(link_from(link));
    return results;
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: is not output of lockstep compare: {}", name, error.what()));
  }
}

}  // namespace lockstep::compare
