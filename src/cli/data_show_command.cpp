#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/index.h"
#include "cli/commands.h"
#include "data/dataset.h"
#include "data/images/image_writer.h"
#include "data/order.h"
#include "data/sheet.h"
#include "data/transforms/mixing.h"
#include "lockstep/error.h"
#include "lockstep/ops.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ShowArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  std::string out;
  int64_t samples = 8;
  int draws = 4;
  bool evaluation = false;
};

/// One sample's fields, as a model gets them.
class SampleReader {
 public:
  explicit SampleReader(const data::Dataset& dataset) : dataset_(dataset) {
    for (const auto& field : dataset.fields()) {
      values_.emplace_back(static_cast<size_t>(field.spec.shape.count() * size_of(field.spec.dtype)));
      destinations_.push_back(values_.back().data());
    }
  }
  void read(const data::SampleKey& key) { dataset_.read(key, destinations_); }
  std::optional<size_t> find(std::string_view name) const {
    const auto found = std::ranges::find(dataset_.fields(), name, &data::Field::name);
    if (found == dataset_.fields().end()) return {};
    return static_cast<size_t>(found - dataset_.fields().begin());
  }
  template <class T>
  std::span<const T> values(size_t field) const {
    const auto& bytes = values_[field];
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  const data::Dataset& dataset_;
  std::vector<std::vector<std::byte>> values_;
  std::vector<std::byte*> destinations_;
};

/// The normalizations that a picture undoes, the last one first: that of an IDX file's mean and deviation,
/// and that of the last transform. Those before others cannot be undone.
std::vector<data::NormalizeOptions> normalizations(const data::DataOptions& options, bool evaluation) {
  std::vector<data::NormalizeOptions> undone;
  if (options.kind == data::DataKind::idx && (options.mean != 0 || options.deviation != 1))
    undone.push_back({{options.mean}, {options.deviation}});
  // Averages of normalized images are normalized.
  const auto list = data::cut_at_mixing(evaluation ? options.eval_transforms : options.transforms);
  const auto& end = list.after.empty() ? list.before : list.after;
  const auto* stated = end.empty() ? nullptr : std::get_if<data::NormalizeOptions>(&end.back());
  if (stated != nullptr) undone.push_back(*stated);
  return undone;
}

void undo(const std::vector<data::NormalizeOptions>& normalizations, int64_t channels,
          std::vector<float>& picture) {
  for (const auto& normalize : normalizations)
    for (size_t i = 0; i < picture.size(); ++i) {
      const size_t channel = normalize.mean.size() == 1 ? 0 : i % static_cast<size_t>(channels);
      picture[i] = picture[i] * static_cast<float>(normalize.deviation[channel]) +
                   static_cast<float>(normalize.mean[channel]);
    }
}

/// What a model gets in one channel.
struct ChannelValues {
  float least = std::numeric_limits<float>::infinity(), greatest = -least;
  double sum = 0;
  int64_t count = 0;
  double mean() const { return sum / static_cast<double>(count); }
};

void take_values(std::span<const float> image, std::vector<ChannelValues>& channels) {
  for (size_t i = 0; i < image.size(); ++i) {
    ChannelValues& channel = channels[i % channels.size()];
    channel.least = std::min(channel.least, image[i]);
    channel.greatest = std::max(channel.greatest, image[i]);
    channel.sum += image[i];
    ++channel.count;
  }
}

Json to_json(const std::vector<ChannelValues>& channels) {
  Json json = Json::array();
  for (const auto& channel : channels)
    json.push_back({{"least", channel.least}, {"greatest", channel.greatest}, {"mean", channel.mean()}});
  return json;
}

/// A line for all channels.
std::string describe(const std::vector<ChannelValues>& channels) {
  std::string text = "the model gets";
  for (size_t i = 0; i < channels.size(); ++i)
    text += fmt::format("{} {:.4g} to {:.4g}, mean {:.4g}",
                        channels.size() == 1 ? "" : fmt::format(" in channel {}", i), channels[i].least,
                        channels[i].greatest, channels[i].mean()) +
            (i + 1 < channels.size() ? ";" : "\n");
  return text;
}

Json to_json(const std::vector<data::NormalizeOptions>& normalizations) {
  Json json = Json::array();
  for (const auto& each : normalizations)
    json.push_back({{"mean", each.mean}, {"deviation", each.deviation}});
  return json;
}

/// Whether a picture shows other values than those that the model gets.
std::string describe(const std::vector<data::NormalizeOptions>& normalizations) {
  if (normalizations.empty()) return "the picture shows these values\n";
  std::string text = "the picture shows values before";
  for (const auto& each : normalizations)
    text += fmt::format(" normalize {{ mean: [{:g}] deviation: [{:g}] }}", fmt::join(each.mean, ", "),
                        fmt::join(each.deviation, ", "));
  return text + "\n";
}

/// Values beyond [0, 1] are not an image's: all are stretched alike, so that least is black and largest
/// white. Returns these two, if so.
std::optional<std::pair<float, float>> fit_into_unit(data::Sheet& sheet) {
  float least = 0, largest = 1;
  for (const auto& row : sheet.rows)
    for (const auto& picture : row.pictures)
      for (const float value : picture) {
        least = std::min(least, value);
        largest = std::max(largest, value);
      }
  constexpr float kRounding = 1e-3f;
  if (least > -kRounding && largest < 1 + kRounding) return {};
  for (auto& row : sheet.rows)
    for (auto& picture : row.pictures)
      for (float& value : picture) value = (value - least) / (largest - least);
  return std::pair(least, largest);
}

/// A few values of a field, or the text that tokens stand for.
std::string shown_values(const data::Dataset& dataset, const data::Field& field, const SampleReader& reader,
                         size_t index) {
  constexpr size_t kMost = 400;
  std::string text;
  if (field.spec.dtype == DType::int32) {
    const auto values = reader.values<int32_t>(index);
    const auto first = values.first(std::min(values.size(), kMost));
    const auto encodings = dataset.encodings();
    const auto found = encodings.find(std::string(tokenizer::kTokenizerFile));
    if (field.name == "tokens" && found != encodings.end())
      text = tokenizer::tokenizer_from_json(found->second, found->first).decode(first);
    else
      text = fmt::format("{}", fmt::join(first, " "));
    return values.size() > kMost ? text + " ..." : text;
  }
  const auto values = reader.values<float>(index);
  for (size_t i = 0; i < std::min<size_t>(values.size(), 16); ++i)
    text += fmt::format("{}{:.4g}", i == 0 ? "" : " ", values[i]);
  return values.size() > 16 ? text + " ..." : text;
}

std::string class_of(const data::Dataset& dataset, int32_t label) {
  const auto names = dataset.class_names();
  return label >= 0 && label < static_cast<int32_t>(names.size()) ? nth(names, label) : std::to_string(label);
}

/// The class that a sample is mixed with, and its share.
struct SecondClass {
  int32_t label = 0;
  double share = 0;
};

std::optional<SecondClass> second_class(const SampleReader& reader) {
  const auto field = reader.find(data::kLabelMixField);
  if (!field) return {};
  const auto values = reader.values<int32_t>(*field);
  if (values.size() != 2 || values[1] == 0) return {};
  return SecondClass{values[0], static_cast<double>(values[1]) / kWholeShare};
}

/// "cat", or "0.7 cat + 0.3 dog".
std::string describe_classes(const data::Dataset& dataset, int32_t label,
                             const std::optional<SecondClass>& second) {
  if (!second) return class_of(dataset, label);
  return fmt::format("{:.3g} {} + {:.3g} {}", 1 - second->share, class_of(dataset, label), second->share,
                     class_of(dataset, second->label));
}

struct Shown {
  data::Sheet sheet;
  std::vector<ChannelValues> values;                   // of images
  std::vector<data::NormalizeOptions> normalizations;  // that pictures undo
  std::vector<float> stretched;  // the values that are black and white, unless they are 0 and 1
  Json samples = Json::array();
  std::string text;
};

/// Reads a sample as it is in some epochs, and draws it.
void draw_images(const ShowArguments& arguments, const data::Dataset& dataset, data::SampleKey key,
                 SampleReader& reader, Json& entry, Shown& shown) {
  const auto image = reader.find("image"), label = reader.find(data::kLabelField);
  const bool is_classified = label && nth(dataset.fields(), *label).spec.shape.count() == 1;
  const auto channels = shown.sheet.shape.channels;
  data::Sheet::Row row{fmt::format("sample {}", key.sample), {}};
  std::vector<std::string> classes;
  for (int draw = 0; draw < arguments.draws; ++draw, ++key.epoch) {
    reader.read(key);
    const auto values = reader.values<float>(*image);
    std::vector<ChannelValues> own(static_cast<size_t>(channels));
    take_values(values, own);
    take_values(values, shown.values);
    Json drawn{{"values", to_json(own)}};
    if (is_classified) {
      const auto second = second_class(reader);
      classes.push_back(describe_classes(dataset, reader.values<int32_t>(*label).front(), second));
      if (second)
        drawn["mixed_with"] = {
            {"label", second->label}, {"class", class_of(dataset, second->label)}, {"share", second->share}};
    }
    entry["draws"].push_back(std::move(drawn));
    std::vector<float> picture(values.begin(), values.end());
    undo(shown.normalizations, channels, picture);
    row.pictures.push_back(std::move(picture));
  }
  // One class for all of them, or one for each picture.
  if (std::ranges::adjacent_find(classes, std::not_equal_to()) == classes.end() && !classes.empty())
    classes.resize(1);
  if (!classes.empty()) row.caption += fmt::format(": {}", fmt::join(classes, " | "));
  shown.sheet.rows.push_back(std::move(row));
}

Shown show_samples(const ShowArguments& arguments, const config::RunConfig& config,
                   const data::Dataset& dataset) {
  Shown shown;
  SampleReader reader(dataset);
  const auto image = reader.find("image"), label = reader.find(data::kLabelField);
  const bool draws_images = image && nth(dataset.fields(), *image).spec.shape.rank() == 3;
  if (draws_images) {
    const Shape& shape = nth(dataset.fields(), *image).spec.shape;
    shown.sheet.shape = {shape[0], shape[1], shape[2]};
    shown.values.resize(static_cast<size_t>(shape[2]));
    shown.normalizations = normalizations(config.data, arguments.evaluation);
  }
  const data::SampleOrder order =
      arguments.evaluation ? data::SampleOrder::once(dataset.size())
                           : data::SampleOrder(config.trainer.seed, dataset.size(), config.data.shuffle);
  for (int64_t position = 0; position < std::min(arguments.samples, dataset.size()); ++position) {
    const data::SampleKey key = order.key(position);
    reader.read(key);
    Json entry{{"sample", key.sample}};
    std::string caption = fmt::format("sample {}", key.sample);
    if (label && nth(dataset.fields(), *label).spec.shape.count() == 1) {
      const int32_t value = reader.values<int32_t>(*label).front();
      entry["label"] = value;
      entry["class"] = class_of(dataset, value);
      caption += fmt::format(": {}", class_of(dataset, value));
    }
    if (draws_images) {
      draw_images(arguments, dataset, key, reader, entry, shown);
      caption = shown.sheet.rows.back().caption;
    }
    const std::string name = dataset.sample_name(key.sample);
    if (!name.empty()) entry["from"] = name;
    shown.text += caption + (name.empty() ? "" : "  " + name) + "\n";
    for (size_t i = 0; i < dataset.fields().size() && !draws_images; ++i)
      shown.text += fmt::format("  {}: {}\n", dataset.fields()[i].name,
                                shown_values(dataset, dataset.fields()[i], reader, i));
    shown.samples.push_back(std::move(entry));
  }
  return shown;
}

int show(const ShowArguments& arguments) {
  const config::RunConfig config = arguments.config.load();
  const data::DatasetPair data = data::open_datasets(config.data);
  const auto& dataset = arguments.evaluation ? data.eval : data.train;
  require(dataset != nullptr, "data show: the config has no data to evaluate on; leave out --eval");
  Shown shown = show_samples(arguments, config, *dataset);
  if (!shown.sheet.rows.empty()) {
    require(!arguments.out.empty(), "data show: images are drawn into a file; name it by --out FILE.png");
    const auto stretched = fit_into_unit(shown.sheet);
    if (stretched) shown.stretched = {stretched->first, stretched->second};
    const data::DrawnSheet drawn = data::draw_sheet(shown.sheet);
    const auto bytes = data::png_bytes(drawn.shape, drawn.pixels);
    std::ofstream file(arguments.out, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) throw IoError(fmt::format("--out {}: cannot write the file", arguments.out));
    shown.text += describe(shown.values) + describe(shown.normalizations);
    if (stretched)
      shown.text +=
          fmt::format("the picture's black is {:.4g}, its white {:.4g}: values are not all from 0 to 1\n",
                      stretched->first, stretched->second);
    shown.text += fmt::format("{}: {} samples, {} draws of each\n", arguments.out, shown.sheet.rows.size(),
                              arguments.draws);
  }
  if (!arguments.output.json) {
    write_result(dataset->description() + "\n" + shown.text);
    return static_cast<int>(ExitCode::done);
  }
  Json json{{"data", dataset->description()}, {"samples", shown.samples}};
  if (!shown.sheet.rows.empty()) {
    json["file"] = arguments.out;
    json["values"] = to_json(shown.values);
    json["undone"] = to_json(shown.normalizations);
    if (!shown.stretched.empty()) json["stretched"] = shown.stretched;
  }
  write_result(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_data_show_command(CLI::App& data, CommandAction& selected) {
  auto& command = add_subcommand(
      data, "show", "Draws the first samples of a training as the model gets them; prints texts and tokens",
      "  lockstep data show configs/digits_quickstart.textproto --data-dir digits --out samples.png");
  const auto arguments = std::make_shared<ShowArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.add_option("--out", arguments->out, "PNG file for images, with labels")->type_name("FILE");
  command.add_option("--samples", arguments->samples, "Number of samples to draw, in training order")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--draws", arguments->draws, "Number of epochs in which to draw each sample")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_flag("--eval", arguments->evaluation, "Samples that are evaluated on, not trained on");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return show(*arguments); }; });
}

}  // namespace lockstep::cli
