#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/text.h"
#include "config/schema.h"
#include "data/dataset.h"
#include "layout/batch_division.h"

namespace lockstep::config {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

// Fields that decide when and where something happens, how fast, or what is shown, but no number. Everything
// in `data`, `trainer`, `optimizer` and `precision` that is not listed here counts; of `parallel`, only what
// is named below.
constexpr std::string_view kWithoutEffect[] = {
    "data.directory",
    "data.prefetch_threads",
    "data.prefetch_depth",
    "data.tokens.files",
    "data.tokens.eval_files",
    "data.tokens.eval_list",
    "data.tokens.tokenizer",
    "data.lines.files",
    "data.lines.eval_files",
    "data.lines.folder",
    "data.lines.eval_folder",
    "data.lines.tokenizer",
    "data.lines.eval_list",
    "data.cifar.eval_list",
    "data.idx.eval_list",
    "data.most_inflated_bytes",
    "data.table.files",
    "data.table.eval_files",
    "data.table.eval_list",
    "data.table.format",
    "data.tokens.format",
    "data.threads",
    "data.records.folder",
    "data.cache_directory",
    "data.cache_bytes",
    "data.transforms_on",
    "trainer.eval_every_steps",
    "trainer.eval_at_end",
    "trainer.nonfinite",
    "trainer.nonfinite_limit",
    "trainer.check_every_steps",
    "trainer.spike_threshold",
    "trainer.early_stopping",
    "optimizer.ema.evaluate",
};
// Left to the layout under FAST, which promises no bits; decisive under REPRODUCIBLE.
constexpr std::string_view kReproducibleOnly[] = {"trainer.virtual_replicas"};
// Known by their last part, compressed or not, so that moving data changes nothing.
constexpr std::string_view kFileNames[] = {
    "data.idx.train_images", "data.idx.train_labels",  "data.idx.eval_images",
    "data.idx.eval_labels",  "data.text.file",         "data.images.train",
    "data.images.eval",      "data.images.train_list", "data.images.eval_list"};
constexpr std::string_view kFileLists[] = {"data.cifar.train_files[", "data.cifar.eval_files["};
// They came later: without them, and with these values, checkpoints from before are of the same data.
constexpr std::pair<std::string_view, std::string_view> kLaterDefaults[] = {{"data.on_damage", "FAIL"},
                                                                            {"data.idx.label_offset", "0"},
                                                                            {"data.idx.transposed", "false"},
                                                                            {"data.idx.eval_fraction", "0"},
                                                                            {"data.idx.split_seed", "1"}};
// Decisive where the loss is scaled.
constexpr std::string_view kLossScaling = "precision.loss_scaling.";
// Decisive where it is not the default, which fits any other mode.
constexpr std::string_view kAsyncLearningRate = "parallel.async_learning_rate";
// Likewise: then nothing is rounded that was not before there was a choice.
constexpr std::string_view kWire = "parallel.wire";
// Likewise: decisive where it is on.
constexpr std::string_view kErrorFeedback = "parallel.error_feedback";
// Decisive where it is set: then elements have two bytes.
constexpr std::string_view kFusedGelu = "precision.fused_gelu";
// Decisive where a group is left out; it came later.
constexpr std::string_view kGroups = "optimizer.groups[", kClipsGroup = "].adaptive_clip";
// Shows what is learned, and changes nothing.
constexpr std::string_view kSample = "trainer.sample.";
constexpr std::string_view kSections[] = {"data.", "trainer.", "optimizer.", "precision.", "weights."};
// A folder, known by its name.
constexpr std::string_view kFolder = "weights.from";

/// Whether it is there, or the list of which it is an element.
template <size_t n>
bool contains(const std::string_view (&list)[n], std::string_view path) {
  if (path.ends_with(']')) path = path.substr(0, path.rfind('['));
  return std::find(std::begin(list), std::end(list), path) != std::end(list);
}

bool is_file_name(std::string_view path) {
  return contains(kFileNames, path) ||
         std::ranges::any_of(kFileLists, [&](std::string_view list) { return path.starts_with(list); });
}

/// `value` is quoted, as text proto prints it.
std::string file_identity(const std::string& value) {
  std::string name = value.substr(1, value.size() - 2);
  name = name.substr(name.rfind('/') + 1);
  return name.ends_with(".gz") ? name.substr(0, name.size() - 3) : name;
}

/// What the upper bound comes to: two bounds that give the same micro-batch give the same numbers.
int64_t actual_micro_batch(const schema::Trainer& trainer) {
  return layout::divide_batch(trainer.global_batch(), trainer.micro_batch(), trainer.virtual_replicas(),
                              layout::Reduction::reproducible, 1)
      .micro_batch;
}

/// Whether a micro-batch decides numbers: of batch norm, whose statistics are those of its samples.
/// Everything else is summed sample by sample.
bool has_statistics(const ModelSpec& model) {
  return std::ranges::any_of(model.layers,
                             [](const Layer& layer) { return std::holds_alternative<BatchNorm>(layer.op); });
}

/// Options that came later: checkpoints from before them are of the same model.
void clear_later_defaults(schema::Layer& layer) {
  if (layer.has_pool2d() && !layer.pool2d().count_include_pad())
    layer.mutable_pool2d()->clear_count_include_pad();
  if (layer.has_attention()) {
    if (layer.attention().key_value_heads() == 0) layer.mutable_attention()->clear_key_value_heads();
    if (layer.attention().causal()) layer.mutable_attention()->clear_causal();
  }
  if (layer.has_conv2d()) {
    auto& conv2d = *layer.mutable_conv2d();
    if (conv2d.groups() == 1) conv2d.clear_groups();
    if (conv2d.dilation() == 1) conv2d.clear_dilation();
    if (conv2d.init_std() == 0) conv2d.clear_init_std();
  }
  if (layer.has_linear()) {
    auto& linear = *layer.mutable_linear();
    if (linear.init_range() == 0) linear.clear_init_range();
    if (!linear.zero_weight()) linear.clear_zero_weight();
    if (linear.bias_init_std() == 0) linear.clear_bias_init_std();
  }
  if (layer.has_embedding() && layer.embedding().init_range() == 0)
    layer.mutable_embedding()->clear_init_range();
  if (layer.has_softmax_cross_entropy() && layer.softmax_cross_entropy().label_smoothing() == 0)
    layer.mutable_softmax_cross_entropy()->clear_label_smoothing();
  if (layer.has_gelu() && layer.gelu().kind() == schema::Gelu::TANH) layer.mutable_gelu()->clear_kind();
  if (layer.has_rotary_embedding() && layer.rotary_embedding().scaling_factor() == 0) {
    auto& rotary = *layer.mutable_rotary_embedding();  // without a factor nothing else of the scaling counts
    rotary.clear_scaling_factor();
    rotary.clear_low_frequency_factor();
    rotary.clear_high_frequency_factor();
    rotary.clear_original_positions();
  }
  if (layer.has_batch_norm() && !layer.batch_norm().zero_weight())
    layer.mutable_batch_norm()->clear_zero_weight();
}

/// How samples are mixed is the data's business: a model is the same if it reads that, or if it does not. Not
/// if the program's own data offer mixtures, which no field of the data tells.
void leave_out_mixtures(schema::Model& model) {
  auto& inputs = *model.mutable_input();
  for (int i = inputs.size() - 1; i >= 0; --i)
    if (inputs[i].name() == data::kLabelMixField) inputs.DeleteSubrange(i, 1);
  for (auto& layer : *model.mutable_layer())
    if (layer.has_softmax_cross_entropy() && layer.input_size() == 3 &&
        layer.input(2) == data::kLabelMixField)
      layer.mutable_input()->RemoveLast();
}

void add_model(const ModelSpec& model, bool has_own_data, Fields& fields) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  schema::Model plain = plain_model(model);
  if (!has_own_data) leave_out_mixtures(plain);
  const auto add = [&](const std::string& path, const google::protobuf::Message& message) {
    std::string text;
    ensure(printer.PrintToString(message, &text), "a layer could not be printed");
    while (text.ends_with(' ')) text.pop_back();
    fields.emplace_back(path, text);
  };
  for (auto& input : *plain.mutable_input()) {
    const std::string path = "model.input." + input.name();
    input.clear_name();
    add(path, input);
  }
  for (auto& layer : *plain.mutable_layer()) {
    const std::string path = "model.layer." + layer.name();
    layer.clear_name();
    clear_later_defaults(layer);
    add(path, layer);
  }
  if (!model.frozen.empty())
    fields.emplace_back("model.frozen", fmt::format("[{}]", join(model.frozen, ", ")));
}

/// Builds before made other numbers of the same transforms.
void add_arithmetic_of_images(const schema::Data& data, Fields& fields) {
  bool resizes = false, has_contrast = false;
  for (const auto* transforms : {&data.transforms(), &data.eval_transforms()})
    for (const schema::Transform& transform : *transforms) {
      resizes |= transform.has_resize() || transform.has_random_resized_crop();
      has_contrast |= transform.has_color_jitter() && transform.color_jitter().contrast() > 0;
    }
  if (resizes && (data.has_images() || data.has_records()))
    fields.emplace_back("data.resized_images", "bytes");
  if (has_contrast) fields.emplace_back("data.contrast", "sums of parts");
}

/// With the rate for the run's batch, as if it were stated so. What is left of scale_with_batch is the
/// warm-up, if this batch has one: a field of its own.
schema::RunConfig with_own_rate(schema::RunConfig config, Fields& fields) {
  auto& optimizer = *config.mutable_optimizer();
  if (!optimizer.has_scale_with_batch()) return config;
  const int64_t global_batch = config.trainer().global_batch();
  if (warms_up_to_batch(optimizer, global_batch)) {
    const auto& scaling = optimizer.scale_with_batch();
    fields.emplace_back(
        "optimizer.scale_with_batch.warmup",
        fmt::format("from {} over {}", exact(optimizer.learning_rate()),
                    scaling.has_warmup_epochs() ? fmt::format("{} epochs", exact(scaling.warmup_epochs()))
                                                : fmt::format("{} steps", scaling.warmup_steps())));
  }
  const double peak = peak_rate(optimizer, global_batch);
  // AdamW's rate beside muon follows in proportion.
  if (optimizer.has_muon()) {
    auto& adamw = *optimizer.mutable_muon()->mutable_adamw();
    adamw.set_learning_rate(adamw.learning_rate() * (peak / optimizer.learning_rate()));
  }
  optimizer.set_learning_rate(peak);
  optimizer.clear_scale_with_batch();
  return config;
}

}  // namespace

Fields math_fields(const schema::RunConfig& config, const ModelSpec& model) {
  const bool reproducible = config.parallel().reduction() == schema::Parallel::REPRODUCIBLE;
  const bool scales_loss = config.precision().compute() == schema::Precision::FLOAT16;
  const bool divides_rate = config.parallel().async_learning_rate() == schema::Parallel::DIVIDED;
  const bool narrows = config.parallel().wire() != schema::Parallel::FLOAT32;
  Fields fields;
  add_model(model, config.data().has_own(), fields);
  for (auto& [path, value] : flatten(with_own_rate(config, fields))) {
    const bool in_section = std::any_of(std::begin(kSections), std::end(kSections),
                                        [&](std::string_view section) { return path.starts_with(section); });
    const bool counts = contains(kReproducibleOnly, path)
                            ? reproducible
                            : path == "parallel.reduction" || (path == kAsyncLearningRate && !divides_rate) ||
                                  (path == kWire && narrows) ||
                                  (path == kErrorFeedback && config.parallel().error_feedback()) ||
                                  (in_section && !contains(kWithoutEffect, path));
    if (!counts || path.starts_with(kSample) || (path.starts_with(kLossScaling) && !scales_loss) ||
        (path == kFusedGelu && !config.precision().fused_gelu()) ||
        (path.starts_with(kGroups) && path.ends_with(kClipsGroup) && value == "true") ||
        std::ranges::find(kLaterDefaults, std::pair<std::string_view, std::string_view>(path, value)) !=
            std::end(kLaterDefaults))
      continue;
    if (path == kFolder && value.ends_with("/\"")) value.erase(value.size() - 2, 1);
    if (is_file_name(path) || path == kFolder) value = file_identity(value);
    if (path == "trainer.micro_batch" && reproducible) {
      if (!has_statistics(model)) continue;
      value = std::to_string(actual_micro_batch(config.trainer()));
    }
    fields.emplace_back(std::move(path), std::move(value));
  }
  add_arithmetic_of_images(config.data(), fields);
  return fields;
}

}  // namespace lockstep::config
