#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/hash.h"
#include "base/index.h"
#include "cli/commands.h"
#include "data/summary.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SummaryArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  bool quick = false;
};

Json to_json(const data::Spread& spread) {
  return {{"least", spread.least}, {"median", spread.median}, {"largest", spread.largest}};
}

Json to_json(const data::PartSummary& part) {
  Json json{{"data", part.description}, {"samples", part.samples}, {"identity", to_hex(part.identity)}};
  for (const auto& [label, count] : part.labels) json["labels"][std::to_string(label)] = count;
  if (part.heights) json["height"] = to_json(*part.heights);
  if (part.widths) json["width"] = to_json(*part.widths);
  if (part.lengths) json["length"] = to_json(*part.lengths);
  json["left_out"] = part.damage.left_out;
  json["replaced"] = part.damage.replaced.size();
  return json;
}

Json to_json(const data::DataSummary& summary) {
  Json json;
  if (!summary.class_names.empty()) json["classes"] = summary.class_names;
  if (summary.train) json["train"] = to_json(*summary.train);
  if (summary.eval) json["eval"] = to_json(*summary.eval);
  if (!summary.duplicates) {
    json["duplicates"] = {{"looked_for", false}};
    return json;
  }
  Json examples = Json::array();
  for (const auto& [train, eval] : summary.duplicates->examples)
    examples.push_back({{"train", train}, {"eval", eval}});
  json["duplicates"] = {{"looked_for", true},
                        {"within_training", summary.duplicates->within_training},
                        {"in_evaluation", summary.duplicates->in_evaluation},
                        {"examples", examples}};
  return json;
}

std::string describe(const data::Spread& spread) {
  return spread.least == spread.largest
             ? std::to_string(spread.least)
             : fmt::format("{} to {}, median {}", spread.least, spread.largest, spread.median);
}

std::string describe(const char* name, const data::PartSummary& part) {
  std::string text = fmt::format("{:<12} {}\n", name, part.description);
  if (part.heights) text += fmt::format("  height     {}\n", describe(*part.heights));
  if (part.widths) text += fmt::format("  width      {}\n", describe(*part.widths));
  if (part.lengths) text += fmt::format("  length     {}\n", describe(*part.lengths));
  if (part.damage.left_out > 0) text += fmt::format("  left out   {} damaged\n", part.damage.left_out);
  if (!part.damage.replaced.empty())
    text += fmt::format("  replaced   {} damaged\n", part.damage.replaced.size());
  return text + fmt::format("  identity   {}\n", to_hex(part.identity));
}

int64_t count_of(const std::optional<data::PartSummary>& part, int64_t label) {
  if (!part) return 0;
  const auto found = part->labels.find(label);
  return found == part->labels.end() ? 0 : found->second;
}

/// A line for each class; of many only the first, for --json has all.
std::string class_table(const data::DataSummary& summary) {
  constexpr size_t kMostLines = 200;
  std::set<int64_t> labels;
  for (const auto* part : {&summary.train, &summary.eval})
    if (*part)
      for (const auto& [label, count] : (*part)->labels) labels.insert(label);
  for (size_t i = 0; i < summary.class_names.size() && !labels.empty(); ++i)
    labels.insert(static_cast<int64_t>(i));
  if (labels.empty()) return "";
  std::string text = fmt::format("{:>6} {:>10} {:>10}  class\n", "label", "train", "eval");
  size_t lines = 0;
  for (const int64_t label : labels) {
    if (++lines > kMostLines)
      return text + fmt::format("and {} more classes; --json has all\n", labels.size() - kMostLines);
    const bool named = label >= 0 && label < static_cast<int64_t>(summary.class_names.size());
    text += fmt::format("{:>6} {:>10} {:>10}  {}\n", label, count_of(summary.train, label),
                        count_of(summary.eval, label), named ? nth(summary.class_names, label) : "");
  }
  return text;
}

std::string describe(const data::DataSummary& summary, bool quick) {
  std::string text;
  if (summary.train) text += describe("training", *summary.train);
  if (summary.eval) text += describe("evaluation", *summary.eval);
  text += class_table(summary);
  if (!summary.duplicates)
    return text + (quick
                       ? "duplicates   not looked for (--quick)\n"
                       : "duplicates   not looked for: samples are windows of tokens, which equal texts may "
                         "divide elsewhere\n");
  text += fmt::format("duplicates   {} within the training data; {} evaluation samples are also trained on\n",
                      summary.duplicates->within_training, summary.duplicates->in_evaluation);
  for (const auto& [train, eval] : summary.duplicates->examples)
    text += fmt::format("  {} = {}\n", eval, train);
  return text;
}

int summarize(const SummaryArguments& arguments) {
  const data::DataSummary summary =
      data::summarize(data::open_datasets(arguments.config.load().data), !arguments.quick);
  write_result(arguments.output.json
                   ? to_json(summary).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                   : describe(summary, arguments.quick));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_data_summary_command(CLI::App& data, CommandAction& selected) {
  auto& command = add_subcommand(
      data, "summary",
      "Counts samples by class, sizes, lengths, and samples that are both trained and evaluated on",
      "  lockstep data summary configs/digits_quickstart.textproto --data-dir digits");
  const auto arguments = std::make_shared<SummaryArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.add_flag("--quick", arguments->quick, "Skip the search for duplicates, which reads all samples");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return summarize(*arguments); }; });
}

}  // namespace lockstep::cli
