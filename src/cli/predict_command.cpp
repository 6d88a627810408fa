#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/index.h"
#include "cli/commands.h"
#include "cli/confusion_table.h"
#include "cli/csv_cell.h"
#include "cli/new_file.h"
#include "data/tables/columns.h"
#include "device/openmp_team.h"
#include "infer/checkpoint_model.h"
#include "infer/predictor.h"
#include "lockstep/error.h"
#include "train/checkpoints/kept_config.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PredictArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  std::string checkpoint, samples, out;
  std::optional<bool> average;
  int threads = 0;
};

int threads_of(const PredictArguments& arguments) {
  return arguments.threads > 0 ? arguments.threads
                               : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// `path` in place of what evaluates: a folder or a list of images, a table, a file or a folder of texts.
void take_samples(data::DataOptions& options, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (!fs::exists(path, unknown))
    throw ConfigError(fmt::format("--samples {}: there is no such file or folder", path));
  const std::string absolute = fs::absolute(path).string();
  const bool is_folder = fs::is_directory(path, unknown);
  switch (options.kind) {
    case data::DataKind::images:
      options.images.eval = is_folder ? absolute : "";
      options.images.eval_list = is_folder ? "" : absolute;
      options.images.eval_fraction = 0;
      if (!is_folder) options.directory = fs::path(absolute).parent_path().string();
      return;
    case data::DataKind::table:
      options.table.eval_files = {absolute};
      options.table.eval_list = "";
      options.table.eval_fraction = 0;
      return;
    case data::DataKind::lines:
      options.lines.files = options.lines.eval_files = {};
      options.lines.folder = options.lines.eval_folder = "";
      (is_folder ? options.lines.folder : options.lines.files.emplace_back()) = absolute;
      (is_folder ? options.lines.eval_folder : options.lines.eval_files.emplace_back()) = absolute;
      options.lines.eval_list = "";
      options.lines.eval_fraction = 0;
      return;
    default:
      throw ConfigError(
          "--samples is for images, tables and lines of text; name other evaluation data by --set data...");
  }
}

std::shared_ptr<const data::Dataset> open_samples(const config::RunConfig& config,
                                                  const std::string& samples) {
  data::DataOptions options = config.data;
  options.may_lack_truth = true;
  if (!samples.empty()) take_samples(options, samples);
  auto opened = data::open_datasets(options).eval;
  if (opened == nullptr)
    throw ConfigError(
        "predict: there are no evaluation data, and these are what is predicted; name some: --samples PATH");
  return opened;
}

/// Names of classes; numbers if they have none.
std::vector<std::string> names_of_classes(const data::Dataset& samples, int64_t classes) {
  std::vector<std::string> names = samples.class_names();
  for (auto c = static_cast<int64_t>(names.size()); c < classes; ++c) names.push_back(std::to_string(c));
  names.resize(static_cast<size_t>(classes));
  return names;
}

/// The lines of the file, and what they come to.
class Predictions {
 public:
  Predictions(const infer::Predictor& predictor, const data::Dataset& samples, int64_t step)
      : samples_(samples), step_(step), is_classifier_(predictor.tells_classes()) {
    const int64_t width = predictor.output_shape().count();
    if (is_classifier_) {
      classes_ = names_of_classes(samples, width);
      confusion_.emplace(width);
    }
    width_ = width;
    if (const auto target = data::target_among(samples.encodings()); target && !target->is_category)
      target_ = *target;
  }

  std::string head() const {
    std::string line = "sample,name";
    if (is_classifier_) {
      line += ",class,predicted";
      for (const std::string& name : classes_) line += "," + csv_cell("p(" + name + ")");
    } else {
      for (const char* column : {"target", "predicted"})
        for (int64_t i = 0; i < width_; ++i)
          line += width_ == 1 ? fmt::format(",{}", column) : fmt::format(",{}[{}]", column, i);
    }
    return line + "\n";
  }

  std::string add(const infer::Prediction& prediction) {
    const std::string begin =
        fmt::format("{},{}", prediction.sample, csv_cell(samples_.sample_name(prediction.sample)));
    ++count_;
    return begin + (is_classifier_ ? class_cells(prediction) : number_cells(prediction)) + "\n";
  }

  std::string text() const {
    std::string text = fmt::format("checkpoint       of step {}\nsamples          {}\n", step_, count_);
    if (!is_classifier_) {
      return compared_ == 0
                 ? text + "squared error    not known: there are no targets\n"
                 : text + fmt::format("squared error    {:.6g}, the mean\n", squares_ / compared_count());
    }
    const int64_t known = confusion_->samples();
    if (known == 0) return text + "accuracy         not known: there are no classes to compare with\n";
    text += fmt::format("accuracy         {:.2f} %, of {} samples whose class is known\n\n",
                        100 * static_cast<double>(confusion_->correct()) / static_cast<double>(known), known);
    return text + confusion_table(*confusion_, classes_);
  }

  Json json() const {
    Json json{{"step", step_}, {"samples", count_}};
    if (!is_classifier_) {
      if (compared_ > 0) json["mean_squared_error"] = squares_ / compared_count();
      return json;
    }
    const int64_t known = confusion_->samples();
    json["known"] = known;
    if (known > 0) json["accuracy"] = static_cast<double>(confusion_->correct()) / static_cast<double>(known);
    json["classes"] = classes_;
    json["confusion"] = Json::array();
    for (int64_t right = 0; right < confusion_->classes; ++right) {
      Json row = Json::array();
      for (int64_t c = 0; c < confusion_->classes; ++c) row.push_back(confusion_->count(right, c));
      json["confusion"].push_back(std::move(row));
    }
    return json;
  }

 private:
  double compared_count() const { return static_cast<double>(compared_); }

  std::string class_cells(const infer::Prediction& prediction) {
    const std::vector<double> shares = infer::probabilities(prediction.outputs);
    const int64_t predicted = infer::most_probable(prediction.outputs);
    std::string right;
    if (prediction.label) {
      if (*prediction.label >= confusion_->classes)
        throw DataError(fmt::format("predict: sample {} has class {}, but the model knows {}",
                                    prediction.sample, *prediction.label, confusion_->classes));
      confusion_->add(*prediction.label, predicted);
      right = nth(classes_, *prediction.label);
    }
    std::string cells = fmt::format(",{},{}", csv_cell(right), csv_cell(nth(classes_, predicted)));
    for (const double share : shares) cells += fmt::format(",{:.6g}", share);
    return cells;
  }

  std::string number_cells(const infer::Prediction& prediction) {
    std::string cells;
    for (int64_t i = 0; i < width_; ++i)
      cells += prediction.target.empty() ? "," : fmt::format(",{:.7g}", in_units(nth(prediction.target, i)));
    for (const float output : prediction.outputs) cells += fmt::format(",{:.7g}", in_units(output));
    for (size_t i = 0; i < prediction.target.size(); ++i) {
      const double off = in_units(prediction.outputs[i]) - in_units(prediction.target[i]);
      squares_ += off * off;
      ++compared_;
    }
    return cells;
  }

  /// A model's number in the units of the data: tables' numbers are standardized.
  double in_units(double number) const { return number * target_.deviation + target_.mean; }

  const data::Dataset& samples_;
  data::Column target_;
  int64_t step_, width_ = 0, count_ = 0;
  bool is_classifier_;
  std::vector<std::string> classes_;
  std::optional<infer::Confusion> confusion_;
  double squares_ = 0;
  int64_t compared_ = 0;  // numbers
};

int predict(const PredictArguments& arguments) {
  device::set_openmp_team(threads_of(arguments));
  const train::OpenedRun run = train::open_run(
      arguments.checkpoint, arguments.config.path, arguments.config.all_overrides(), arguments.average,
      fmt::format("name its config: lockstep predict CONFIG --checkpoint {}", arguments.checkpoint));
  infer::Predictor predictor(*run.config.graph, threads_of(arguments));
  if (predictor.tells_many_classes())
    throw ConfigError(
        "predict: the model predicts many classes for each sample, such as each next token of a text; use "
        "lockstep generate to let it write, or lockstep eval for its loss");
  const auto samples = open_samples(run.config, arguments.samples);
  infer::load_parameters(predictor.evaluator(), run.checkpoint, run.weights);
  std::optional<NewFile> file;
  if (!arguments.out.empty()) file.emplace("--out", arguments.out);
  Predictions predictions(predictor, *samples, run.checkpoint.manifest().step);
  if (file) file->append(predictions.head());
  predictor.predict(*samples, [&](const infer::Prediction& prediction) {
    const std::string line = predictions.add(prediction);
    if (file) file->append(line);
  });
  if (file) file->finish();
  write_result(arguments.output.json ? predictions.json().dump() + "\n" : predictions.text());
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_predict_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "predict", "Says what a checkpoint's model predicts for each evaluation sample",
      "  lockstep predict --checkpoint runs/digits --out predictions.csv\n"
      "  lockstep predict --checkpoint runs/iris/best --samples new.csv --out predictions.csv");
  const auto arguments = std::make_shared<PredictArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.get_option("CONFIG")->required(false)->description(
      "Config file; default: the config saved with the run");
  add_checkpoint(command, arguments->checkpoint);
  add_average(command, arguments->average);
  command
      .add_option(
          "--samples", arguments->samples,
          "What to predict, whose classes or targets need not be known: a folder or a list of images, a "
          "table, a file or a folder of texts; default: the evaluation data")
      ->type_name("PATH");
  command
      .add_option("--out", arguments->out,
                  "CSV file with a line for each sample: class or target, prediction, probabilities")
      ->type_name("FILE");
  command.add_option("--threads", arguments->threads, "Threads to compute with; default: all cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return predict(*arguments); }; });
}

}  // namespace lockstep::cli
