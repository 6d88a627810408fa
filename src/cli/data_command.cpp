#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "data/digits.h"
#include "lockstep/error.h"
#include "observe/json_text.h"

namespace lockstep::cli {
namespace {

struct DigitsArguments {
  std::string directory;
  data::DigitsOptions digits;
  OutputArguments output;
};

int make_digits(const DigitsArguments& arguments) {
  const auto& digits = arguments.digits;
  data::generate_digits(arguments.directory, digits);
  if (arguments.output.json)
    write_result(fmt::format("{{\"directory\":{},\"train\":{},\"eval\":{},\"seed\":{}}}\n",
                             observe::json_string(arguments.directory), digits.train_count, digits.eval_count,
                             digits.seed));
  else
    write_result(fmt::format("{}: {} training and {} evaluation digits of {} x {} pixels, seed {}\n",
                             arguments.directory, digits.train_count, digits.eval_count, data::kDigitSize,
                             data::kDigitSize, digits.seed));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_data_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(program, "data", "Makes data sets", "  lockstep data digits --out digits");
  command.require_subcommand(1);
  auto& digits = add_subcommand(
      command, "digits",
      "Drawn digits with random distortion and noise, in MNIST's format; files that are there already "
      "are kept where they hold the same, and refused otherwise",
      "  lockstep data digits --out digits --train 12000 --eval 2000 --seed 1");
  const auto arguments = std::make_shared<DigitsArguments>();
  digits.add_option("--out", arguments->directory, "Folder for the four files")->type_name("DIR")->required();
  digits.add_option("--train", arguments->digits.train_count, "Training samples")->capture_default_str();
  digits.add_option("--eval", arguments->digits.eval_count, "Evaluation samples")->capture_default_str();
  digits.add_option("--seed", arguments->digits.seed, "Another seed draws other digits")
      ->capture_default_str();
  digits.add_flag("--force", arguments->digits.overwrite, "Replace files that hold something else");
  arguments->output.add_json_to(digits);
  digits.callback([&selected, arguments] { selected = [arguments] { return make_digits(*arguments); }; });
}

}  // namespace lockstep::cli
