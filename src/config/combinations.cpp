#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "config/schema.h"
#include "data/dataset.h"
#include "infer/language_model.h"
#include "layout/batch_division.h"
#include "lockstep/error.h"
#include "parallel/layout_rules.h"

namespace lockstep::config {
namespace {

const ModelInput* find_input(const ModelSpec& model, const std::string& name) {
  for (const auto& input : model.inputs)
    if (input.name == name) return &input;
  return nullptr;
}

void check_fields(const ModelSpec& model, const Document& document, const std::string& kind,
                  const std::string& field) {
  for (const auto& input : model.inputs)
    if (input.name != field && input.name != "label" && input.name != data::kLabelMixField &&
        !(field == "tokens" && input.name == data::kDocumentsField))
      document.refuse(
          kind, fmt::format("its samples have the fields '{}' and 'label'{}, but the model reads '{}'", field,
                            field == "tokens" ? ", and can have 'documents'" : "", input.name));
}

void check_fields_among(const ModelSpec& model, const Document& document, const std::string& kind,
                        const std::vector<std::string>& fields) {
  for (const auto& input : model.inputs)
    if (std::ranges::find(fields, input.name) == fields.end())
      document.refuse(kind, fmt::format("its samples have the fields {}, but the model reads '{}'",
                                        join(fields, ", "), input.name));
}

void fit_length(schema::Lines& lines, const ModelSpec& model, const Document& document) {
  const auto* tokens = find_input(model, "tokens");
  const bool sequence = tokens && tokens->spec.shape.rank() == 1;
  if (!lines.has_length() && !sequence)
    document.refuse("data.lines.length",
                    "is required, since the model has no input 'tokens' of one dimension");
  if (!lines.has_length()) lines.set_length(tokens->spec.shape[0]);
  if (sequence && lines.length() != tokens->spec.shape[0])
    document.refuse("data.lines.length", fmt::format("is {}, but the model takes {} tokens", lines.length(),
                                                     tokens->spec.shape[0]));
}

/// Tokens per sample: as the model takes them, and as stated where something is stated.
template <class Kind>
void fit_context(Kind& kind, const ModelSpec& model, const Document& document, const std::string& path) {
  const auto* tokens = find_input(model, "tokens");
  const bool sequence = tokens && tokens->spec.shape.rank() == 1;
  if (!kind.has_context()) {
    if (!sequence)
      document.refuse(path, "is required, since the model has no input 'tokens' of one dimension");
    kind.set_context(tokens->spec.shape[0]);
  } else if (sequence && kind.context() != tokens->spec.shape[0]) {
    document.refuse(
        path, fmt::format("is {}, but the model takes {} tokens", kind.context(), tokens->spec.shape[0]));
  }
}

/// What begins a document concerns nobody but a model that reads which document a token belongs to.
template <class Kind>
void check_end_of_text(const Kind& kind, const ModelSpec& model, const Document& document,
                       const std::string& path) {
  if (kind.has_end_of_text() && find_input(model, std::string(data::kDocumentsField)) == nullptr)
    document.refuse(path, "is ignored, since the model has no input 'documents'; remove it");
}

/// Positions that evaluations pad have the document -1, which no embedding can look up.
void check_documents_are_marks(const ModelSpec& model, const Document& document, const std::string& path) {
  for (const Layer& layer : model.layers)
    if (std::holds_alternative<Embedding>(layer.op) && !layer.inputs.empty() &&
        layer.inputs[0] == data::kDocumentsField)
      document.refuse(path, fmt::format("'documents' is -1 where evaluations are padded, which layer '{}' "
                                        "cannot look up; give 'documents' to attention alone",
                                        layer.name));
}

/// Attention tells its further inputs apart by their types, so a type that does not fit the name would mean
/// something else without an error.
void check_marks(const ModelSpec& model, const Document& document) {
  for (const Layer& layer : model.layers) {
    if (!std::holds_alternative<Attention>(layer.op)) continue;
    for (size_t i = 1; i < layer.inputs.size(); ++i) {
      const ModelInput* input = find_input(model, layer.inputs[i]);
      if (input == nullptr) continue;
      const bool is_int = input->spec.dtype == DType::int32;
      if (input->name == data::kDocumentsField && !is_int)
        document.refuse("model",
                        fmt::format("layer '{}' reads 'documents' as a mask, since it is {}; give the "
                                    "input type: INT32",
                                    layer.name, name_of(input->spec.dtype)));
      if (input->name == "mask" && is_int)
        document.refuse("model", fmt::format("layer '{}' reads 'mask' as documents, since it is {}; give the "
                                             "input type: FLOAT32",
                                             layer.name, name_of(input->spec.dtype)));
    }
  }
}

/// `transformed`: the model gets images of another size than the data have.
void fit_synthetic(schema::Synthetic& data, const ModelSpec& model, bool transformed,
                   const Document& document) {
  const std::string path = "data.synthetic";
  if (find_input(model, "tokens")) {
    check_fields(model, document, path, "tokens");
    if (data.shape_size() > 0)
      document.refuse(path + ".shape", "is for images, but the model reads 'tokens'");
    fit_context(data, model, document, path + ".context");
    return;
  }
  check_fields(model, document, path, "image");
  if (data.has_context())
    document.refuse(path + ".context", "is for tokens, but the model does not read 'tokens'");
  const auto* image = find_input(model, "image");
  if (data.shape_size() == 0) {
    if (!image) document.refuse(path + ".shape", "is required, since the model has no input 'image'");
    for (const int64_t dim : image->spec.shape.dims()) data.add_shape(dim);
  }
  const Shape shape(std::vector<int64_t>(data.shape().begin(), data.shape().end()));
  if (image && shape != image->spec.shape && !transformed)
    document.refuse(path + ".shape", fmt::format("is {}, but the model's input 'image' is {}",
                                                 shape.to_string(), image->spec.shape.to_string()));
}

void check_range(const schema::SampleRange& range, const Document& document, const std::string& path) {
  if (range.end() != -1 && range.end() <= range.begin())
    document.refuse(
        path, fmt::format("[{}, {}) holds no samples; end must be above begin, or -1 for the last sample",
                          range.begin(), range.end()));
}

/// How many fields say what evaluates.
template <class Kind>
int splits(const Kind& kind) {
  return (kind.eval_files_size() > 0) + kind.has_eval_list() + (kind.eval_fraction() > 0);
}

int splits(const schema::Lines& lines) {
  return (lines.eval_files_size() > 0) + lines.has_eval_folder() + lines.has_eval_list() +
         (lines.eval_fraction() > 0);
}

int splits(const schema::Idx& idx) {
  return !idx.eval_images().empty() + idx.has_eval_list() + (idx.eval_fraction() > 0);
}

void check_lines(const schema::Lines& lines, const Document& document) {
  if (lines.files().empty() != lines.has_folder())
    document.refuse("data.lines", "needs either files or a folder");
  if (lines.has_folder() ? lines.eval_files_size() > 0 : lines.has_eval_folder())
    document.refuse("data.lines", "takes eval_files with files, and eval_folder with a folder");
  if (splits(lines) > 1)
    document.refuse("data.lines",
                    "sets more than one of eval_files, eval_folder, eval_list and eval_fraction; choose one");
}

template <class Kind>
void check_split(const Kind& kind, const Document& document, const std::string& path) {
  if (kind.files().empty()) document.refuse(path + ".files", "must name a file, or a pattern");
  if (splits(kind) > 1)
    document.refuse(path, "sets more than one of eval_files, eval_list and eval_fraction; choose one");
}

bool evaluates(const schema::Data& data) {
  switch (data.kind_case()) {
    case schema::Data::kIdx:
      return splits(data.idx()) > 0;
    case schema::Data::kText:
      return data.text().train_fraction() < 1;
    case schema::Data::kOwn:
      return data.own().eval_samples() > 0;
    case schema::Data::kTokens:
      return splits(data.tokens()) > 0;
    case schema::Data::kLines:
      return splits(data.lines()) > 0;
    case schema::Data::kTable:
      return splits(data.table()) > 0;
    case schema::Data::kImages:
      return data.images().has_eval() || data.images().has_eval_list() || data.images().eval_fraction() > 0;
    case schema::Data::kCifar:
      return true;  // files, or a share of the training samples
    case schema::Data::kRecords:
      return true;  // their index says it
    default:
      return data.synthetic().eval_samples() > 0;
  }
}

void check_data(const schema::Data& data, const Document& document) {
  if (data.has_idx()) {
    check_range(data.idx().train_range(), document, "data.idx.train_range");
    check_range(data.idx().eval_range(), document, "data.idx.eval_range");
    if (data.idx().eval_images().empty() != data.idx().eval_labels().empty())
      document.refuse("data.idx", "names only one of eval_images and eval_labels; set both or neither");
    const auto& range = data.idx().eval_range();
    if (splits(data.idx()) > 1)
      document.refuse("data.idx",
                      "sets more than one of eval_images, eval_list and eval_fraction; choose one");
    if (data.idx().split_seed() != schema::Idx().split_seed() && data.idx().eval_fraction() == 0)
      document.refuse("data.idx.split_seed", "is ignored without eval_fraction; remove it");
    if (data.eval_transforms_size() > 0 && splits(data.idx()) == 0)
      document.refuse("data.eval_transforms",
                      "are ignored without eval_images, eval_list or eval_fraction; remove them");
    if (data.idx().eval_images().empty() && (range.begin() != 0 || range.end() != -1))
      document.refuse("data.idx.eval_range", "is ignored without eval_images; remove it");
  }
  if (data.has_lines()) check_lines(data.lines(), document);
  if (data.has_table()) check_split(data.table(), document, "data.table");
  if (data.has_tokens()) check_split(data.tokens(), document, "data.tokens");
  const bool states_size = data.prefetch_threads() != schema::Data().prefetch_threads() ||
                           data.prefetch_depth() != schema::Data().prefetch_depth();
  if (data.threads() == schema::Data::AUTOMATIC && states_size)
    document.refuse("data.threads",
                    "is AUTOMATIC, but prefetch_threads or prefetch_depth is stated; remove one");
  if (!data.cache_directory().empty() && !data.has_images())
    document.refuse("data.cache_directory", "is for data.images; remove it");
  if (data.cache_directory().empty() && data.cache_bytes() != schema::Data().cache_bytes())
    document.refuse("data.cache_bytes", "is ignored without cache_directory; remove it");
  if (data.prefetch_threads() == 0 && data.prefetch_depth() != schema::Data().prefetch_depth())
    document.refuse("data.prefetch_depth", "is ignored with prefetch_threads: 0; remove it");
}

void check_division(const schema::RunConfig& config, const Document& document) {
  const auto& trainer = config.trainer();
  const auto& parallel = config.parallel();
  const bool reproducible = parallel.reduction() == schema::Parallel::REPRODUCIBLE;
  const int workers = std::max(1, parallel.dp());  // where none are stated, the trainer checks them
  const bool too_many = reproducible && workers > trainer.virtual_replicas();
  try {
    layout::divide_batch(trainer.global_batch(), trainer.micro_batch(), trainer.virtual_replicas(),
                         static_cast<layout::Reduction>(parallel.reduction()), workers, parallel.pushes());
  } catch (const ConfigError& error) {
    const char* culprit = too_many ? "parallel.dp" : "trainer.global_batch";
    throw ConfigError(fmt::format("{}: {}", document.where(culprit), error.what()));
  }
}

/// The first statistic whose running average the model keeps; "" if there is none.
std::string first_statistic(const model::Graph& graph) {
  const auto found = std::ranges::find(graph.parameters, ops::ParameterRole::statistic,
                                       [](const auto& parameter) { return parameter.spec.role; });
  return found == graph.parameters.end() ? "" : found->name;
}

/// What is known of the job only when it starts is checked then, by the same rules.
void check_layout(const schema::RunConfig& config, const model::Graph& graph, const layout::Layout& layout,
                  const Document& document) {
  const parallel::ParallelOptions options = convert_parallel(config.parallel(), layout);
  const auto refusal = parallel::first_refusal(
      {.options = options,
       .layout = layout,
       .storage =
           config.precision().compute() == schema::Precision::FLOAT16 ? DType::float16 : DType::float32,
       .states_async_statistics = config.parallel().has_async_statistics(),
       .statistic = first_statistic(graph),
       .updates_matrices = config.optimizer().has_muon(),
       .noise_scale = config.metrics().noise_scale_every_steps() > 0,
       .transforms_on_gpu = config.data().transforms_on() == schema::Data::GPU,
       .reads_images = parallel::reads_images(graph),
       .histograms = config.metrics().histogram_every_steps() > 0,
       .writes_samples = config.trainer().has_sample()});
  if (refusal) document.refuse(refusal->field, refusal->reason);
}

void check_sample(const schema::RunConfig& config, const model::Graph& graph, const Document& document) {
  if (!config.trainer().has_sample()) return;
  if (const std::string why = infer::why_it_cannot_write(graph); !why.empty())
    document.refuse("trainer.sample", fmt::format("the model cannot write text: {}; leave it out", why));
}

/// What scales updates by norms.
void check_ratios(const schema::Optimizer& optimizer, const Document& document) {
  const bool has_ratios = optimizer.has_lars() || optimizer.has_lamb();
  if (optimizer.has_adaptive_clip() && has_ratios)
    document.refuse("optimizer.adaptive_clip",
                    fmt::format("limits gradients by norms of their parameters, by which {} scales updates "
                                "already; remove it",
                                optimizer.has_lars() ? "lars" : "lamb"));
  if (optimizer.has_adaptive_clip() && optimizer.has_muon())
    document.refuse(
        "optimizer.adaptive_clip",
        "limits gradients by norms, which muon's updates of matrices do not depend on; remove it");
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    const auto& group = optimizer.groups(g);
    if (!group.adaptive_clip() && !optimizer.has_adaptive_clip())
      document.refuse(fmt::format("optimizer.groups[{}].adaptive_clip", g),
                      "is ignored without optimizer.adaptive_clip; remove it");
    if (group.has_muon() && !optimizer.has_muon())
      document.refuse(fmt::format("optimizer.groups[{}].muon", g),
                      "is ignored without optimizer.muon; remove it");
  }
}

void check_optimizer(const schema::RunConfig& config, const Document& document) {
  const auto& optimizer = config.optimizer();
  if (optimizer.has_sgd() && optimizer.sgd().nesterov() && optimizer.sgd().momentum() == 0)
    document.refuse("optimizer.sgd.nesterov", "needs momentum; set optimizer.sgd.momentum, such as 0.9");
  check_ratios(optimizer, document);
  const bool decays_elsewhere = optimizer.has_muon() && optimizer.muon().adamw().weight_decay() != 0;
  if (optimizer.decay_norm_and_bias() && optimizer.weight_decay() == 0 && !decays_elsewhere)
    document.refuse("optimizer.decay_norm_and_bias", "is ignored without optimizer.weight_decay");
  check_schedule(optimizer, config.trainer().global_batch(), document);
}

void check_precision(const schema::RunConfig& config, const Document& document) {
  const auto& scaling = config.precision().loss_scaling();
  const std::string path = "precision.loss_scaling";
  const auto compute = config.precision().compute();
  if (config.precision().fused_gelu() && compute != schema::Precision::BFLOAT16 &&
      compute != schema::Precision::FLOAT16)
    document.refuse("precision.fused_gelu",
                    "applies only to precision.compute: BFLOAT16 and FLOAT16; remove it");
  if (compute != schema::Precision::FLOAT16) {
    const auto demand_default = [&](const char* field, bool is_default) {
      if (!is_default)
        document.refuse(fmt::format("{}.{}", path, field),
                        "applies only to precision.compute: FLOAT16; remove it");
    };
    const schema::LossScaling plain;
    demand_default("initial_scale", scaling.initial_scale() == plain.initial_scale());
    demand_default("growth_interval", scaling.growth_interval() == plain.growth_interval());
    demand_default("minimum", scaling.minimum() == plain.minimum());
    demand_default("maximum", scaling.maximum() == plain.maximum());
    return;
  }
  for (const auto& [field, value] :
       {std::pair("initial_scale", scaling.initial_scale()), std::pair("minimum", scaling.minimum()),
        std::pair("maximum", scaling.maximum())})
    if (!optim::is_power_of_two(value))
      document.refuse(fmt::format("{}.{}", path, field),
                      fmt::format("expected a power of two, such as 1024, found {}", exact(value)));
  if (scaling.minimum() > scaling.initial_scale())
    document.refuse(path + ".minimum",
                    fmt::format("is {}, above initial_scale = {}; lower it, or raise initial_scale",
                                exact(scaling.minimum()), exact(scaling.initial_scale())));
  if (scaling.maximum() < scaling.initial_scale())
    document.refuse(path + ".maximum",
                    fmt::format("is {}, below initial_scale = {}; raise it, or lower initial_scale",
                                exact(scaling.maximum()), exact(scaling.initial_scale())));
  if (config.trainer().nonfinite() == schema::Trainer::IGNORE)
    document.refuse("trainer.nonfinite",
                    "IGNORE would apply gradients that overflow, as some do with precision.compute: FLOAT16; "
                    "use LOCATE, STOP or SKIP, or BFLOAT16");
}

void check_checkpoint(const schema::Checkpoint& checkpoint, const Document& document) {
  const bool resumes = checkpoint.has_resume_path() || checkpoint.resume_automatic();
  if (checkpoint.has_resume_path() && checkpoint.resume_path().empty())
    document.refuse("checkpoint.resume_path", "must not be empty; name a checkpoint's folder, or remove it");
  if (checkpoint.allow_config_change() && !resumes)
    document.refuse("checkpoint.allow_config_change",
                    "is ignored if nothing is resumed; set resume_path or resume_automatic, too");
  if (checkpoint.keep() != schema::Checkpoint().keep() && checkpoint.every_steps() == 0 &&
      !checkpoint.at_end() && !checkpoint.keep_best())
    document.refuse("checkpoint.keep",
                    "is ignored if nothing is saved; set checkpoint.every_steps or at_end");
}

void check_weights(const schema::Weights& weights, const ModelSpec& model, const Document& document) {
  if (!weights.has_from()) {
    if (weights.new_layers_size() > 0)
      document.refuse("weights.new_layers", "is ignored without weights.from: all weights are drawn");
    if (weights.leave_out_size() > 0)
      document.refuse("weights.leave_out", "is ignored without weights.from: all weights are drawn");
    return;
  }
  if (weights.from().empty())
    document.refuse("weights.from", "must not be empty; name a folder or a file, or remove it");
  std::vector<std::string> names;
  for (const auto& layer : model.layers) names.push_back(layer.name);
  for (const auto& name : weights.new_layers())
    if (std::ranges::find(names, name) == names.end())
      document.refuse("weights.new_layers",
                      fmt::format("the model has no layer '{}'{}", name, did_you_mean(name, names)));
}

void check_metrics(const schema::Metrics& metrics, const Document& document) {
  const std::string& address = metrics.prometheus_address();
  in6_addr bytes{};  // large enough for both kinds
  if (::inet_pton(AF_INET, address.c_str(), &bytes) != 1 &&
      ::inet_pton(AF_INET6, address.c_str(), &bytes) != 1)
    document.refuse("metrics.prometheus_address", fmt::format("expected an IP address, found '{}'", address));
  constexpr double kLeastSeconds = 0.01;
  if (metrics.machine_every_seconds() > 0 && metrics.machine_every_seconds() < kLeastSeconds)
    document.refuse("metrics.machine_every_seconds",
                    fmt::format("must be at least {}, or 0 for no figures of machines, found {}",
                                kLeastSeconds, metrics.machine_every_seconds()));
  if (metrics.histogram_every_steps() > 0 && !metrics.tensorboard())
    document.refuse("metrics.histogram_every_steps",
                    "histograms are for TensorBoard; set metrics.tensorboard: true, or leave it out");
  if (!metrics.has_mlflow()) return;
  const std::string& uri = metrics.mlflow().uri();
  const bool is_web = uri.starts_with("http://") || uri.starts_with("https://");
  if (!is_web || uri.find_first_of(" ?#", 0) != std::string::npos)
    document.refuse("metrics.mlflow.uri",
                    fmt::format("expected a server such as http://127.0.0.1:5000, found '{}'", uri));
  // The config is kept with the run, and sent to the server.
  if (uri.find('@') != std::string::npos)
    document.refuse("metrics.mlflow.uri",
                    "must not hold a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
  if (metrics.mlflow().experiment().empty())
    document.refuse("metrics.mlflow.experiment", "must not be empty; leave it out for its default");
}

void check_evaluations(const schema::RunConfig& config, const Document& document) {
  const int64_t every = config.trainer().eval_every_steps();
  if (every > 0 && !evaluates(config.data()))
    document.refuse("trainer.eval_every_steps", "is ignored, since there are no evaluation data; remove it");
  if (every == 0 && config.trainer().early_stopping() > 0)
    document.refuse("trainer.early_stopping",
                    "is ignored without evaluations during training; set trainer.eval_every_steps");
  if (every == 0 && config.checkpoint().keep_best())
    document.refuse("checkpoint.keep_best",
                    "is ignored without evaluations during training; set trainer.eval_every_steps");
}

}  // namespace

void fit_data_to_model(schema::Data& data, const ModelSpec& model, const Document& document) {
  if (data.has_idx()) check_fields(model, document, "data.idx", "image");
  if (data.has_images()) check_fields(model, document, "data.images", "image");
  if (data.has_cifar()) check_fields(model, document, "data.cifar", "image");
  fit_image_data(data, model, document);
  if (data.has_text()) {
    check_fields(model, document, "data.text", "tokens");
    fit_context(*data.mutable_text(), model, document, "data.text.context");
    check_end_of_text(data.text(), model, document, "data.text.end_of_text");
    check_documents_are_marks(model, document, "data.text");
  }
  if (data.has_table()) check_fields_among(model, document, "data.table", {"features", "label", "target"});
  if (data.has_lines()) {
    check_fields_among(model, document, "data.lines", {"tokens", "mask", "label"});
    fit_length(*data.mutable_lines(), model, document);
  }
  if (data.has_tokens()) {
    check_fields(model, document, "data.tokens", "tokens");
    fit_context(*data.mutable_tokens(), model, document, "data.tokens.context");
    check_end_of_text(data.tokens(), model, document, "data.tokens.end_of_text");
    check_documents_are_marks(model, document, "data.tokens");
  }
  if (data.has_synthetic())
    fit_synthetic(*data.mutable_synthetic(), model, data.transforms_size() + data.eval_transforms_size() > 0,
                  document);
  check_transformed(data, document);
}

void check_combinations(const schema::RunConfig& config, const ModelSpec& model, const model::Graph& graph,
                        const layout::Layout& layout, const Document& document) {
  check_marks(model, document);
  check_precision(config, document);
  check_data(config.data(), document);
  check_evaluations(config, document);
  check_division(config, document);
  check_sample(config, graph, document);
  check_layout(config, graph, layout, document);
  check_optimizer(config, document);
  check_checkpoint(config.checkpoint(), document);
  check_metrics(config.metrics(), document);
  check_weights(config.weights(), model, document);
}

}  // namespace lockstep::config
