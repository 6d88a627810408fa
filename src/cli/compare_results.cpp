#include "cli/compare_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 4;
constexpr size_t kMostNamed = 4;   // layouts in a sentence
constexpr size_t kFewestRuns = 3;  // by which anything is known
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

Json to_json(const CompareSample& sample) {
  Json json{{"round", sample.round}};
  for (const auto& [name, field] : kSampleFields) json[name] = to_json(sample.*field);
  return json;
}

CompareSample sample_from(const Json& json) {
  CompareSample sample{.round = json.at("round").get<int>()};
  for (const auto& [name, field] : kSampleFields) sample.*field = number_from(json.at(name));
  return sample;
}

Json to_json(const CompareRow& row) {
  Json json{{"link", row.link},
            {"workers", row.workers},
            {"layout", layout::to_string(row.layout)},
            {"kind", row.kind},
            {"processes", row.layout.world_size()},
            {"global_batch", row.global_batch},
            {"link_bytes_theory", row.link_bytes_theory},
            {"predicted_ms", row.predicted_ms},
            {"proof", name_of(row.proof)}};
  if (!row.proof_detail.empty()) json["proof_detail"] = row.proof_detail;
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
                 .workers = json.at("workers").get<int>(),
                 .layout = layout::parse_layout(json.at("layout").get<std::string>()),
                 .kind = json.at("kind").get<std::string>(),
                 .global_batch = json.at("global_batch").get<int64_t>(),
                 .link_bytes_theory = json.at("link_bytes_theory").get<double>(),
                 .proof_detail = json.value("proof_detail", ""),
                 .failure = json.value("failure", ""),
                 .predicted_ms = json.at("predicted_ms").get<double>()};
  const auto proof = std::ranges::find(kProofNames, json.at("proof").get<std::string>());
  if (proof == kProofNames.end()) throw DataError("a proof of no known kind");
  row.proof = static_cast<CompareProof>(proof - kProofNames.begin());
  for (const Json& sample : json.at("samples")) row.samples.push_back(sample_from(sample));
  for (const Json& loss : json.at("losses"))
    row.losses.push_back({loss.at("samples").get<int64_t>(), number_from(loss.at("loss"))});
  return row;
}

Json to_json(const CompareTie& tie) {
  Json json{{"workers", tie.workers}, {"kind", tie.kind}, {"beside", tie.beside}};
  if (tie.servers) {
    json["link"] = tie.link;
    json["servers"] = *tie.servers;
    json["servers_tried"] = tie.servers_tried;
  } else {
    json["bits_per_second"] = to_json(tie.bits_per_second);
    json["up_to"] = tie.up_to;
  }
  return json;
}

CompareTie tie_from(const Json& json) {
  CompareTie tie{.workers = json.at("workers").get<int>(),
                 .kind = json.at("kind").get<std::string>(),
                 .beside = json.at("beside").get<std::string>(),
                 .link = json.value("link", "")};
  if (json.contains("servers")) {
    tie.servers = json.at("servers").get<int>();
    tie.servers_tried = json.at("servers_tried").get<int>();
  } else {
    tie.bits_per_second = number_from(json.at("bits_per_second"), std::numeric_limits<double>::infinity());
    tie.up_to = json.at("up_to").get<bool>();
  }
  return tie;
}

const CompareRow* measured(const std::vector<CompareRow>& rows, const auto& is_wanted) {
  const auto found = std::ranges::find_if(
      rows, [&](const CompareRow& row) { return !row.samples.empty() && is_wanted(row); });
  return found == rows.end() ? nullptr : &*found;
}

std::string proofs_of(const std::vector<const CompareRow*>& rows) {
  const auto is = [](CompareProof proof) {
    return [proof](const CompareRow* row) { return row->proof == proof; };
  };
  if (std::ranges::all_of(rows, is(CompareProof::identical))) return "bits identical";
  if (std::ranges::all_of(rows, is(CompareProof::not_tried))) return "bits were not compared";
  std::vector<std::string> parts, others;
  for (const CompareRow* row : rows)
    if (row->proof == CompareProof::other_mathematics)
      others.push_back(row->kind);
    else if (row->proof != CompareProof::identical)
      parts.push_back(fmt::format("bits of {}: {}", row->kind, name_of(row->proof)));
  if (!others.empty())
    parts.push_back(
        fmt::format("{} {} other mathematics", join(others, " and "), others.size() == 1 ? "is" : "are"));
  return join(parts, ", ");
}

/// Of the most workers with which there is something to compare: the fastest layout, beside the others.
std::string sentence_about(const std::vector<CompareRow>& rows, const std::string& link) {
  int workers = 0;
  for (const CompareRow& row : rows) {
    const auto others = std::ranges::count_if(rows, [&](const CompareRow& other) {
      return other.link == link && other.workers == row.workers && !other.samples.empty();
    });
    if (others > 1) workers = std::max(workers, row.workers);
  }
  if (workers == 0) return "";
  std::vector<const CompareRow*> found;
  for (const CompareRow& row : rows)
    if (row.link == link && row.workers == workers && !row.samples.empty()) found.push_back(&row);
  std::ranges::stable_sort(found, {}, [](const CompareRow* row) { return row->step_ms(); });
  std::vector<std::string> parts;
  for (size_t i = 1; i < found.size(); ++i) {
    // Of many the next and the slowest: the table has all.
    if (found.size() > kMostNamed && i > 1 && i + 1 < found.size()) continue;
    const bool knows = std::min(found[0]->samples.size(), found[i]->samples.size()) >= kFewestRuns;
    const bool can_tell = knows && found[0]->step_interval().high < found[i]->step_interval().low;
    parts.push_back(
        can_tell ? fmt::format("{:.2f} times as fast as {}", found[i]->step_ms() / found[0]->step_ms(),
                               found[i]->kind)
        : knows
            ? fmt::format("as fast as {}, as far as {} runs tell", found[i]->kind, found[i]->samples.size())
            : fmt::format("perhaps {:.2f} times as fast as {}, of which there are too few runs",
                          found[i]->step_ms() / found[0]->step_ms(), found[i]->kind));
  }
  if (found.size() > kMostNamed) parts.push_back(fmt::format("with {} between them", found.size() - 3));
  const std::string place = link.empty()     ? "With"
                            : link == "none" ? "Over a free link, with"
                                             : fmt::format("At {}, with", link);
  return fmt::format("{} {} worker{} {} is {}; {}.", place, workers, workers == 1 ? "" : "s", found[0]->kind,
                     join(parts, ", "), proofs_of(found));
}

}  // namespace

std::string_view name_of(CompareProof proof) { return kProofNames[static_cast<size_t>(proof)]; }

std::string CompareRow::name() const {
  return fmt::format("{}{} worker{}, {}", link.empty() ? "" : "link " + link + ", ", workers,
                     workers == 1 ? "" : "s", kind);
}

double CompareRow::mean(double CompareSample::*field) const {
  double sum = 0;
  for (const CompareSample& sample : samples) sum += sample.*field;
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

std::vector<double> CompareRow::step_times() const {
  std::vector<double> times;
  for (const CompareSample& sample : samples) times.push_back(sample.step_ms);
  return times;
}

double CompareRow::straggler_goodput() const {
  const double with = mean(&CompareSample::straggler_step_ms);
  return with > 0 ? mean(&CompareSample::step_ms) / with : 0;
}

std::optional<double> CompareRow::seconds_to(double loss) const {
  const auto reached =
      std::ranges::find_if(losses, [loss](const CompareLoss& some) { return some.loss <= loss; });
  if (reached == losses.end() || samples.empty()) return std::nullopt;
  return static_cast<double>(reached->samples) / samples_per_second();
}

bool CompareRow::is_precise(double precision) const {
  if (samples.size() < kFewestRuns) return false;
  const Interval interval = step_interval();
  const double middle = step_ms();
  return middle - interval.low <= precision * middle && interval.high - middle <= precision * middle;
}

bool CompareResults::continues(const CompareResults& other) const {
  const auto same = [](const CompareRow& one, const CompareRow& two) {
    return one.link == two.link && one.workers == two.workers && one.layout == two.layout &&
           one.global_batch == two.global_batch;
  };
  return config_hash == other.config_hash && version == other.version && weak == other.weak &&
         steps == other.steps && straggler == other.straggler && device == other.device &&
         hosts_text == other.hosts_text && host == other.host && proof_steps == other.proof_steps &&
         std::ranges::equal(rows, other.rows, same) && std::ranges::equal(forecasts, other.forecasts, same);
}

double CompareResults::efficiency(const CompareRow& row) const {
  const CompareRow* fewest = &row;
  for (const CompareRow& other : rows)
    if (other.link == row.link && other.kind == row.kind && !other.samples.empty() &&
        other.workers < fewest->workers)
      fewest = &other;
  return row.samples_per_second() * fewest->workers / (fewest->samples_per_second() * row.workers);
}

std::optional<double> CompareResults::prediction_error() const {
  std::vector<double> errors;
  for (const CompareRow& row : rows)
    if (!row.samples.empty() && row.predicted_ms > 0 && has_cores(row))
      errors.push_back(std::abs(row.prediction_error()));
  if (errors.empty()) return std::nullopt;
  return median(errors);
}

std::string sentence_of(const CompareTie& tie) {
  const std::string with = fmt::format("with {} workers {}", tie.workers, tie.kind);
  if (tie.servers) {
    const std::string over = tie.link.empty() ? "these hosts" : tie.link == "none" ? "a free link" : tie.link;
    return *tie.servers == 0
               ? fmt::format("{} over {}: not even {} server{} with {}", with, over, tie.servers_tried,
                             tie.servers_tried == 1 ? " ties" : "s tie", tie.beside)
               : fmt::format("{} over {}: {} server{} with {}", with, over, *tie.servers,
                             *tie.servers == 1 ? " ties" : "s tie", tie.beside);
  }
  if (tie.bits_per_second == 0) return fmt::format("{} is never slower than {}", with, tie.beside);
  if (!std::isfinite(tie.bits_per_second)) return fmt::format("{} never ties with {}", with, tie.beside);
  const bool giga = tie.bits_per_second >= 1e9;
  const double rate = tie.bits_per_second / (giga ? 1e9 : 1e6);
  return fmt::format("{} ties with {} {} {:.{}f} {}bit/s{}", with, tie.beside, tie.up_to ? "up to" : "from",
                     rate, rate < 10 ? 1 : 0, giga ? "G" : "M", tie.up_to ? "" : " on");
}

/// Rates at which layouts tie, those that never do in one phrase.
std::string sentence_about(const std::vector<CompareTie>& ties) {
  std::vector<std::string> phrases;
  std::map<std::pair<int, std::string>, std::vector<std::string>> never;  // by workers and beside whom
  for (const CompareTie& tie : ties) {
    if (tie.servers) continue;
    if (std::isfinite(tie.bits_per_second))
      phrases.push_back(sentence_of(tie));
    else
      never[{tie.workers, tie.beside}].push_back(tie.kind);
  }
  for (const auto& [which, kinds] : never)
    phrases.push_back(fmt::format("with {} workers {} never {} with {}", which.first, join(kinds, " and "),
                                  kinds.size() == 1 ? "ties" : "tie", which.second));
  return phrases.empty() ? "" : fmt::format("By prediction, {}.", join(phrases, "; "));
}

double CompareResults::cost(const CompareRow& row) const {
  const double seconds = 1e6 / row.samples_per_second();
  return price * row.mean(&CompareSample::hosts) * seconds / 3600;
}

std::vector<std::string> CompareResults::links() const {
  std::vector<std::string> links;
  for (const CompareRow& row : rows)
    if (std::ranges::find(links, row.link) == links.end()) links.push_back(row.link);
  return links;
}

std::vector<std::string> CompareResults::answers() const {
  std::vector<std::string> sentences;
  for (const std::string& link : links())
    if (const std::string sentence = sentence_about(rows, link); !sentence.empty())
      sentences.push_back(sentence);
  if (const std::string sentence = sentence_about(ties); !sentence.empty()) sentences.push_back(sentence);
  if (sentences.empty())
    sentences.push_back("There are no two layouts of one number of workers to compare yet.");
  return sentences;
}

std::string CompareResults::headline() const { return join(answers(), " "); }

std::string CompareResults::table() const {
  size_t width = 6, link_width = 4;
  for (const CompareRow& row : rows) {
    width = std::max(width, row.kind.size());
    link_width = std::max(link_width, row.link.size());
  }
  const bool has_links = links() != std::vector<std::string>{""};
  const auto link_cell = [&](const std::string& link) {
    return has_links ? fmt::format("{:>{}}  ", link, link_width) : "";
  };
  const auto straggler_cell = [&](const std::string& part) {
    return straggler.empty() ? "" : fmt::format("  {:>14}", part);
  };
  const auto loss_cell = [&](const std::string& seconds) {
    return target_loss > 0 ? fmt::format("  {:>14}", seconds) : "";
  };
  const auto cost_cell = [&](const std::string& cost) {
    return price > 0 ? fmt::format("  {:>15}", cost) : "";
  };
  std::string text = link_cell("link");
  text += fmt::format("{:>7}  {:<{}}  {:>9}  {:>9}  {:<19}  {:>9}  {:>10}  {:>10}  {:>8}  {:>6}{}{}{}  {}\n",
                      "workers", "layout", width, "processes", "step ms", "95 %", "predicted", "samples/s",
                      "efficiency", "beside", "waits", straggler_cell("with straggler"),
                      loss_cell(fmt::format("loss {:g} after", target_loss)), cost_cell("million samples"),
                      "bits");
  for (const CompareRow& row : rows) {
    text += link_cell(row.link);
    text += fmt::format("{:>7}  {:<{}}  {:>9}  ", row.workers, row.kind, width, row.layout.world_size());
    if (row.samples.empty()) {
      text += fmt::format("{}\n", row.failure.empty() ? "not measured" : "FAILED: " + row.failure);
      continue;
    }
    const CompareRow* first = measured(rows, [&](const CompareRow& other) {
      return other.link == row.link && other.workers == row.workers;
    });
    const Interval interval = row.step_interval();
    text += fmt::format(
        "{:>9.2f}  {:<19}  {:>9}  {:>10.1f}  {:>8.1f} %  {:>8.2f}  {:>4.0f} %{}{}{}  {}\n", row.step_ms(),
        fmt::format("{:.2f} to {:.2f}", interval.low, interval.high),
        row.predicted_ms > 0 ? fmt::format("{:.2f}{}", row.predicted_ms, has_cores(row) ? "" : "*") : "-",
        row.samples_per_second(), 100 * efficiency(row),
        row.samples_per_second() / first->samples_per_second(),
        100 * row.mean(&CompareSample::exposed_comm_ms) / row.mean(&CompareSample::step_ms),
        straggler_cell(fmt::format("{:.0f} %", 100 * row.straggler_goodput())),
        loss_cell(row.seconds_to(target_loss) ? human_seconds(*row.seconds_to(target_loss)) : "-"),
        cost_cell(fmt::format("{:.4g}", cost(row))), name_of(row.proof));
  }
  for (const CompareRow& row : rows) {
    if (!row.samples.empty() && !row.failure.empty())
      text += fmt::format("{}: FAILED after {} runs: {}\n", row.name(), row.samples.size(), row.failure);
    if (!row.proof_detail.empty()) text += fmt::format("{}: {}\n", row.name(), row.proof_detail);
  }
  return text + predictions();
}

std::string CompareResults::predictions() const {
  std::string text;
  if (const std::optional<double> error = prediction_error())
    text += fmt::format("predictions are off by {:.1f} % in the median{}\n", 100 * *error,
                        std::ranges::all_of(rows, [&](const CompareRow& row) { return has_cores(row); })
                            ? ""
                            : "; *: for a core for each process, of which there are fewer");
  for (const CompareRow& row : forecasts)
    if (row.predicted_ms > 0)
      text += fmt::format(
          "{}, each process on a host of its own: {:.2f} ms a step, {:.1f} samples/s, not "
          "measured\n",
          row.name(), row.predicted_ms, row.predicted_rate());
  for (const CompareTie& tie : ties) text += sentence_of(tie) + "\n";
  return text;
}

std::string CompareResults::csv() const {
  std::string text = "link,workers,layout,processes,global_batch,proof,predicted_ms,round";
  for (const auto& [name, field] : kSampleFields) text += fmt::format(",{}", name);
  text += "\n";
  for (const CompareRow& row : rows)
    for (const CompareSample& sample : row.samples) {
      text += fmt::format("{},{},\"{}\",{},{},{},{},{}", row.link, row.workers, layout::to_string(row.layout),
                          row.layout.world_size(), row.global_batch, name_of(row.proof), row.predicted_ms,
                          sample.round);
      for (const auto& [name, field] : kSampleFields) text += fmt::format(",{}", sample.*field);
      text += "\n";
    }
  return text;
}

Json to_json(const CompareResults& results) {
  Json json{{"format", kFormat},
            {"headline", results.headline()},
            {"command", results.command},
            {"config", results.config},
            {"config_hash", results.config_hash},
            {"version", results.version},
            {"host", results.host},
            {"cores", results.cores},
            {"device", results.device},
            {"hostfile", results.hosts_text},
            {"straggler", results.straggler},
            {"target_loss", results.target_loss},
            {"price", results.price},
            {"began", results.began},
            {"scaling", results.weak ? "weak" : "strong"},
            {"steps", results.steps},
            {"proof_steps", results.proof_steps},
            {"rows", Json::array()},
            {"forecasts", Json::array()},
            {"ties", Json::array()}};
  if (const std::optional<double> error = results.prediction_error()) json["prediction_error"] = *error;
  for (const CompareRow& row : results.rows) json["rows"].push_back(to_json(row));
  for (const CompareRow& row : results.forecasts) json["forecasts"].push_back(to_json(row));
  for (const CompareTie& tie : results.ties) json["ties"].push_back(to_json(tie));
  return json;
}

CompareResults compare_results_from_text(const std::string& text, const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<int>() != kFormat) throw DataError("of another version of lockstep");
    CompareResults results{.command = json.at("command").get<std::string>(),
                           .config = json.at("config").get<std::string>(),
                           .config_hash = json.at("config_hash").get<std::string>(),
                           .version = json.at("version").get<std::string>(),
                           .host = json.at("host").get<std::string>(),
                           .began = json.at("began").get<std::string>(),
                           .weak = json.at("scaling").get<std::string>() == "weak",
                           .steps = json.at("steps").get<int64_t>(),
                           .proof_steps = json.at("proof_steps").get<int64_t>(),
                           .cores = json.at("cores").get<int>(),
                           .straggler = json.at("straggler").get<std::string>(),
                           .target_loss = json.at("target_loss").get<double>(),
                           .device = json.at("device").get<std::string>(),
                           .hosts_text = json.at("hostfile").get<std::string>(),
                           .price = json.at("price").get<double>()};
    for (const Json& row : json.at("rows")) results.rows.push_back(row_from(row));
    for (const Json& row : json.at("forecasts")) results.forecasts.push_back(row_from(row));
    for (const Json& tie : json.at("ties")) results.ties.push_back(tie_from(tie));
    return results;
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: is not what compare writes: {}", name, error.what()));
  }
}

}  // namespace lockstep::cli
