#include "observe/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "observe/json_text.h"

namespace lockstep::observe {
namespace {

class JsonObject {
 public:
  /// `value` is JSON already.
  void add(std::string_view name, std::string_view value) {
    text_ += fmt::format("{}{}:{}", text_.empty() ? "" : ",", json_string(name), value);
  }
  void number(std::string_view name, double value) { add(name, json_number(value)); }
  void number(std::string_view name, const std::optional<double>& value) {
    if (value) number(name, *value);
  }
  void count(std::string_view name, int64_t value) { add(name, fmt::to_string(value)); }
  void hash(std::string_view name, uint64_t value) { add(name, json_string(to_hex(value))); }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

/// Bytes to people and to the digit.
std::string bytes(int64_t size) {
  return size < 1024 ? human_bytes(size) : fmt::format("{} ({} bytes)", human_bytes(size), size);
}

std::string sent_and_received(double sent, double received) {
  JsonObject json;
  json.number("sent", sent);
  json.number("received", received);
  return json.text();
}

std::string to_json(const RankReport& rank) {
  JsonObject json;
  json.count("rank", rank.rank);
  json.add("role", json_string(rank.role));
  if (!rank.host.empty()) json.add("host", json_string(rank.host));
  if (rank.stage) json.count("stage", *rank.stage);
  if (rank.replica) json.count("replica", *rank.replica);
  json.number(rank.is_worker() ? "exposed_comm_ms" : "server_wait_ms", rank.waited_ms);
  if (rank.is_worker()) json.number("data_wait_ms", rank.data_wait_ms);
  json.number(rank.is_worker() ? "compute_share" : "server_busy", rank.busy_share);
  json.add("wire_bytes", sent_and_received(rank.sent_bytes, rank.received_bytes));
  json.add("wire_bytes_theory", sent_and_received(static_cast<double>(rank.sent_bytes_theory),
                                                  static_cast<double>(rank.received_bytes_theory)));
  json.count("peak_memory_bytes", rank.peak_memory_bytes);
  if (!rank.interfaces.empty()) {
    JsonObject interfaces;
    for (const auto& [name, bytes] : rank.interfaces)
      interfaces.add(name, sent_and_received(bytes.sent, bytes.received));
    json.add("interface_bytes", interfaces.text());
  }
  return json.text();
}

/// One line of all servers, for people: the least and the most of them; "" if there are none.
std::string describe_servers(const std::vector<RankReport>& ranks) {
  int servers = 0;
  double least = 1, most = 0, sent = 0, received = 0;
  for (const RankReport& rank : ranks) {
    if (rank.is_worker()) continue;
    ++servers;
    least = std::min(least, rank.busy_share.value_or(0));
    most = std::max(most, rank.busy_share.value_or(0));
    sent = std::max(sent, rank.sent_bytes);
    received = std::max(received, rank.received_bytes);
  }
  if (servers == 0) return "";
  const std::string busy = servers == 1 ? fmt::format("{:.0f} %", 100 * most)
                                        : fmt::format("{:.0f} to {:.0f} %", 100 * least, 100 * most);
  return fmt::format("busy {} of a step, get up to {} and send {} in it", busy,
                     human_bytes(static_cast<int64_t>(received)), human_bytes(static_cast<int64_t>(sent)));
}

/// "communication, swap": each once, and only a few, so that a line of a terminal holds them.
std::string rules_of(const std::vector<Advice>& advice) {
  constexpr size_t kMost = 3;
  std::vector<std::string> rules;
  for (const Advice& one : advice)
    if (rules.size() < kMost && std::ranges::find(rules, one.rule) == rules.end()) rules.push_back(one.rule);
  return join(rules, ", ");
}

/// What rounds to nothing is left out.
std::string list_of_parts(const StartupMilliseconds& milliseconds) {
  std::vector<std::string> parts;
  for (size_t part = 0; part < kStartupParts; ++part)
    if (milliseconds.parts[part] >= 0.5)
      parts.push_back(
          fmt::format("{} {:.0f}", name_of(static_cast<StartupPart>(part)), milliseconds.parts[part]));
  return join(parts, ", ");
}

}  // namespace

std::string to_json(const RunReport& report) {
  JsonObject json;
  json.count("steps", report.steps);
  json.number("epochs", report.epochs);
  json.count("skipped_steps", report.skipped_steps);
  if (report.left_out_samples + report.replaced_samples > 0) {
    JsonObject damaged;
    damaged.count("left_out", report.left_out_samples);
    damaged.count("replaced", report.replaced_samples);
    json.add("damaged_samples", damaged.text());
  }
  json.number("loss_scale", report.loss_scale);
  json.number("train_loss", report.train_loss);
  json.number("eval_loss", report.eval_loss);
  json.number("perplexity", report.perplexity);
  if (report.best_step) json.count("best_step", *report.best_step);
  json.number("best_eval_loss", report.best_eval_loss);
  if (report.ended_early) json.add("ended_early", "true");
  json.number("eval_accuracy", report.eval_accuracy);
  json.number("noise_scale", report.noise_scale);
  json.number("samples_per_second", report.samples_per_second);
  json.number("tokens_per_second", report.tokens_per_second);
  if (report.step_ms) {
    JsonObject step_ms;
    step_ms.number("mean", report.step_ms->mean);
    step_ms.number("p50", report.step_ms->p50);
    step_ms.number("p99", report.step_ms->p99);
    json.add("step_ms", step_ms.text());
  }
  json.number("exposed_comm_ms", report.exposed_comm_ms);
  json.number("data_wait_ms", report.data_wait_ms);
  json.number("bubble_fraction", report.bubble_fraction);
  json.number("bubble_fraction_theory", report.bubble_fraction_theory);
  json.number("startup_ms", report.startup_ms);
  if (report.first_step) {
    json.number("first_step_ms", report.first_step->total());
    JsonObject parts;
    for (size_t part = 0; part < kStartupParts; ++part)
      parts.number(name_of(static_cast<StartupPart>(part)), report.first_step->parts[part]);
    json.add("startup_parts_ms", parts.text());
  }
  json.count("peak_memory_bytes", report.peak_memory_bytes);
  json.count("host_memory_bytes", report.host_memory_bytes);
  json.count("process_memory_bytes", report.process_memory_bytes);
  json.count("process_memory_growth_bytes", report.process_memory_growth_bytes);
  json.hash("params_hash", report.params_hash);
  json.hash("state_hash", report.state_hash);
  json.hash("math_hash", report.math_hash);
  json.hash("config_hash", report.config_hash);
  if (const auto& staleness = report.staleness) {
    json.count("sessions", report.sessions);
    if (report.lost_workers > 0) json.count("lost_workers", report.lost_workers);
    JsonObject of_pushes;
    if (staleness->bound) of_pushes.count("bound", *staleness->bound);
    of_pushes.count("max", staleness->max);
    of_pushes.number("mean", staleness->mean);
    of_pushes.add("histogram", fmt::format("[{}]", fmt::join(staleness->histogram, ",")));
    json.add("staleness", of_pushes.text());
  }
  json.count("world_size", report.world_size);
  json.add("layout", json_string(report.layout));
  std::vector<std::string> ranks;
  for (const RankReport& rank : report.ranks) ranks.push_back(to_json(rank));
  json.add("ranks", fmt::format("[{}]", join(ranks, ",")));
  if (!report.machines.empty()) json.add("machine", to_json(report.machines));
  if (report.explanation) json.add("explanation", to_json(*report.explanation));
  return json.text();
}

std::string describe(const RunReport& report, bool verbose) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (report.eval_loss) rows.emplace_back("evaluation loss", fmt::format("{:.6g}", *report.eval_loss));
  if (report.best_step && report.best_eval_loss != report.eval_loss)
    rows.emplace_back("best evaluation",
                      fmt::format("loss {:.6g} after step {}", *report.best_eval_loss, *report.best_step));
  if (report.perplexity) rows.emplace_back("perplexity", fmt::format("{:.6g}", *report.perplexity));
  if (report.eval_accuracy)
    rows.emplace_back("accuracy", fmt::format("{:.2f} %", 100 * *report.eval_accuracy));
  if (report.train_loss)
    rows.emplace_back("training loss", fmt::format("{:.6g} (last step)", *report.train_loss));
  if (report.noise_scale)
    rows.emplace_back("noise scale", fmt::format("{:.4g} samples", *report.noise_scale));
  rows.emplace_back("steps", fmt::format("{} ({:.2f} epochs)", report.steps, report.epochs));
  if (report.skipped_steps > 0)
    rows.emplace_back("skipped steps", fmt::format("{}, not finite", report.skipped_steps));
  if (report.left_out_samples + report.replaced_samples > 0)
    rows.emplace_back("damaged samples", fmt::format("{} left out, {} replaced", report.left_out_samples,
                                                     report.replaced_samples));
  if (report.loss_scale) rows.emplace_back("loss scale", fmt::format("{}", *report.loss_scale));
  if (report.samples_per_second)
    rows.emplace_back("samples/s", fmt::format("{:.1f}", *report.samples_per_second));
  if (report.tokens_per_second)
    rows.emplace_back("tokens/s", fmt::format("{:.1f}", *report.tokens_per_second));
  if (const auto& step = report.step_ms) {
    rows.emplace_back("step",
                      fmt::format("{:.3f} ms (p50 {:.3f}, p99 {:.3f})", step->mean, step->p50, step->p99));
  }
  rows.emplace_back("waits per step", fmt::format("{:.3f} ms for communication, {:.3f} ms for data",
                                                  report.exposed_comm_ms, report.data_wait_ms));
  if (report.explanation) rows.emplace_back("time", summary(*report.explanation));
  if (report.explanation && !report.explanation->ranks.empty())
    if (const std::string light = light_text(report.explanation->mean()); !light.empty())
      rows.emplace_back("speed", light);
  if (report.explanation && !report.explanation->advice.empty())
    rows.emplace_back("advice on", rules_of(report.explanation->advice) + " (lockstep explain)");
  if (report.bubble_fraction_theory)
    rows.emplace_back(
        "bubble",
        report.bubble_fraction
            ? fmt::format("{:.1f} % of a step, {:.1f} % of it by its schedule", 100 * *report.bubble_fraction,
                          100 * *report.bubble_fraction_theory)
            : fmt::format("{:.1f} % of a step by its schedule", 100 * *report.bubble_fraction_theory));
  if (const std::string servers = describe_servers(report.ranks); report.step_ms && !servers.empty())
    rows.emplace_back("servers", servers);
  if (report.lost_workers > 0)
    rows.emplace_back("lost", fmt::format("{} worker{}, without which the run went on", report.lost_workers,
                                          report.lost_workers == 1 ? "" : "s"));
  if (const auto& staleness = report.staleness)
    rows.emplace_back(
        "staleness",
        fmt::format("{:.2f} updates on average, {} at most{}", staleness->mean, staleness->max,
                    staleness->bound ? fmt::format(" (bound {})", *staleness->bound) : std::string()));
  for (auto& row : describe(report.machines)) rows.push_back(std::move(row));
  if (verbose) {
    if (report.first_step)
      rows.emplace_back("first step done",
                        fmt::format("{:.0f} ms after the start: {}", report.first_step->total(),
                                    list_of_parts(*report.first_step)));
    else
      rows.emplace_back("start-up", fmt::format("{:.0f} ms", report.startup_ms));
    rows.emplace_back("planned memory", bytes(report.peak_memory_bytes));
    rows.emplace_back("host memory", bytes(report.host_memory_bytes));
    rows.emplace_back("process memory", bytes(report.process_memory_bytes) + ", of which " +
                                            human_bytes(report.process_memory_growth_bytes) +
                                            " since the plan was allocated");
  }
  rows.emplace_back("processes", fmt::format("{} ({})", report.world_size, report.layout));
  rows.emplace_back("params hash", to_hex(report.params_hash));
  if (verbose) rows.emplace_back("state hash", to_hex(report.state_hash));

  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  std::string table;
  for (const auto& [name, value] : rows) table += fmt::format("{:<{}}  {}\n", name, width, value);
  return table;
}

}  // namespace lockstep::observe
