#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "data/check.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  int threads = 0;
};

Json damage_json(const std::string& part, const data::SampleDamage& damage) {
  Json json{{"part", part}};
  if (!damage.file.empty()) json["file"] = damage.file;
  if (damage.sample >= 0) json["sample"] = damage.sample;
  if (damage.byte >= 0) json["byte"] = damage.byte;
  json["what"] = damage.what;
  return json;
}

Json to_json(const data::CheckedData& checked) {
  Json json, damaged = Json::array();
  for (const auto& damage : checked.on_opening) damaged.push_back(damage_json("opening", damage));
  for (const auto& part : checked.parts) {
    json[part.name] = {{"data", part.description}, {"samples", part.samples}};
    for (const auto& damage : part.damaged) damaged.push_back(damage_json(part.name, damage));
  }
  json["damaged"] = damaged;
  return json;
}

std::string describe(const data::SampleDamage& damage) {
  std::string place = damage.file;
  if (damage.sample >= 0) place += fmt::format("{}sample {}", place.empty() ? "" : ", ", damage.sample);
  if (damage.byte >= 0) place += fmt::format(", byte {}", damage.byte);
  return place.empty() ? damage.what + "\n" : fmt::format("{}: {}\n", place, damage.what);
}

std::string describe(const data::CheckedData& checked) {
  std::string text;
  for (const auto& damage : checked.on_opening) text += describe(damage);
  for (const auto& part : checked.parts) {
    for (const auto& damage : part.damaged) text += describe(damage);
    text += fmt::format("{:<6} {} samples, {} damaged: {}\n", part.name, part.samples, part.damaged.size(),
                        part.description);
  }
  return text + (checked.damaged() == 0 ? std::string("no damage\n")
                                        : fmt::format("{} damaged\n", checked.damaged()));
}

int check(const CheckArguments& arguments) {
  const data::CheckedData checked = data::check_data(arguments.config.load().data, arguments.threads);
  write_result(arguments.output.json
                   ? to_json(checked).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                   : describe(checked));
  return static_cast<int>(checked.damaged() == 0 ? ExitCode::done : ExitCode::data);
}

}  // namespace

void add_data_check_command(CLI::App& data, CommandAction& selected) {
  auto& command = add_subcommand(
      data, "check", "Looks at every sample once and lists what is damaged; exit code 65 if anything is",
      "  lockstep data check examples/images/digits.textproto --data-dir jpegs");
  const auto arguments = std::make_shared<CheckArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.add_option("--threads", arguments->threads, "Threads that check; default: all cores")
      ->check(CLI::Range(1, 1024));
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return check(*arguments); }; });
}

}  // namespace lockstep::cli
