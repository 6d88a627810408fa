#include "config/run_config.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/strutil.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/hash.h"
#include "base/text.h"
#include "config/schema.h"
#include "lockstep/config.h"
#include "lockstep/error.h"
#include "model/presets.h"
#include "model/shared_graph.h"

namespace lockstep::config {
namespace {

namespace fs = std::filesystem;

/// Reads at most a byte more than a file may have, so that a wrong file is refused before it fills memory.
std::string read_file(const std::string& path, const char* what) {
  constexpr size_t kMost = (1 << 20) + 1;
  // Opening a pipe would wait for whoever may write into it.
  std::error_code unknown;
  const auto status = fs::status(path, unknown);
  if (fs::is_other(status))
    throw ConfigError(fmt::format("cannot read the {} {}: it is not a regular file", what, path));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMost, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    const std::string reason = errno ? std::strerror(errno) : "not readable";
    std::vector<std::string> names;
    std::error_code ignored;
    const fs::path wanted(path);
    const auto folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
    for (auto entry = fs::directory_iterator(folder, ignored); !ignored && entry != fs::directory_iterator();
         entry.increment(ignored))
      if (entry->path().extension() == wanted.extension()) names.push_back(entry->path().filename().string());
    throw ConfigError(fmt::format("cannot read the {} {}: {}{}", what, path, reason,
                                  did_you_mean(wanted.filename().string(), names)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

model::Profile read_profile(const std::string& path, const Document& document) {
  try {
    return profile_from_text(read_file(path, "profile"), path);
  } catch (const ConfigError& error) {
    document.refuse("parallel.profile", error.what());
  }
}

/// Shapes whose elements nobody can count, or that no memory of 63 bits holds, by name.
void require_countable(const model::Graph& graph) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;  // bytes of state, gradients and copies
  const auto count_of = [](const std::string& what, const Shape& shape) {
    try {
      return shape.count();
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", what, error.what()));
    }
  };
  int64_t parameters = 0;
  for (const auto& parameter : graph.parameters) {
    const int64_t count = count_of("parameter " + parameter.name, parameter.spec.shape);
    if (count > kMost - parameters)
      throw ConfigError(
          fmt::format("parameter {}: the parameters up to this one exceed any memory", parameter.name));
    parameters += count;
  }
  for (const auto& value : graph.values) count_of("the output of layer " + value.name, value.spec.shape);
}

void state_own_model(const ModelSpec& model, schema::RunConfig& config, const Document& document) {
  if (config.has_model()) document.refuse("model", "the program passes its own model; remove it");
  *config.mutable_model() = plain_model(model);
}

void state_own_samples(const data::DatasetPair& samples, schema::Data& data, const Document& document) {
  if (data.kind_case() != schema::Data::KIND_NOT_SET)
    document.refuse("data", "the program passes its own samples; remove idx, text, synthetic and own");
  data.mutable_own()->set_samples(samples.train->size());
  if (samples.eval != nullptr) data.mutable_own()->set_eval_samples(samples.eval->size());
}

/// Below relative_to, or, where that does not exist, from the current folder.
std::string find_path(const std::string& relative_to, const std::string& path) {
  const fs::path there = fs::path(relative_to) / path;
  std::error_code unknown;
  return relative_to.empty() || path.empty() || !fs::exists(there, unknown) ? path : there.string();
}

/// Paths of the command line begin from the current folder, whatever those of the file do.
void pin_overridden_paths(schema::RunConfig& config, const Document& document) {
  if (config.relative_to().empty()) return;
  config.set_relative_to(fs::absolute(config.relative_to()).string());
  if (document.is_overridden("data.directory"))
    config.mutable_data()->set_directory((fs::current_path() / config.data().directory()).string());
  if (document.is_overridden("parallel.profile") && !config.parallel().profile().empty())
    config.mutable_parallel()->set_profile(fs::absolute(config.parallel().profile()).string());
  if (document.is_overridden("checkpoint.resume_path") && config.checkpoint().has_resume_path())
    config.mutable_checkpoint()->set_resume_path(fs::absolute(config.checkpoint().resume_path()).string());
  if (document.is_overridden("weights.from") && !config.weights().from().empty())
    config.mutable_weights()->set_from(fs::absolute(config.weights().from()).string());
}

void find_paths(const schema::RunConfig& config, RunConfig& run) {
  run.relative_to = config.relative_to();
  if (run.relative_to.empty()) return;
  run.checkpoint.resume_path = find_path(run.relative_to, run.checkpoint.resume_path);
  run.weights.from = find_path(run.relative_to, run.weights.from);
  if (fs::path(run.data.directory).is_absolute()) return;
  run.data.other_directory = run.data.directory;
  run.data.directory = (fs::path(run.relative_to) / run.data.directory).string();
}

uint64_t hash_of(const std::vector<std::pair<std::string, std::string>>& fields) {
  uint64_t hash = fields.size();
  for (const auto& [name, value] : fields)
    hash = hash_combine(hash_combine(hash, hash64(name)), hash64(value));
  return hash;
}

}  // namespace

DType PrecisionOptions::storage() const {
  switch (compute) {
    case ComputeType::bfloat16:
      return DType::bfloat16;
    case ComputeType::float16:
      return DType::float16;
    default:
      return DType::float32;
  }
}

int resolved_virtual_replicas(const TrainerOptions& options) {
  if (options.virtual_replicas > 0) return options.virtual_replicas;
  int replicas = 8;
  while (options.global_batch % replicas != 0) replicas /= 2;
  return replicas;
}

std::string describe_batch_scaling(const RunConfig& config) {
  if (!config.batch_scaling) return "";
  const optim::BatchScaling& scaling = *config.batch_scaling;
  const std::string ratio = fmt::format("{} / {}", config.trainer.global_batch, scaling.from);
  return fmt::format(
      "learning rate {:.6g}: {} for a global batch of {}, times {}", config.optimizer.learning_rate,
      exact(scaling.learning_rate), scaling.from,
      scaling.rule == optim::ScalingRule::linear ? ratio : fmt::format("the square root of {}", ratio));
}

namespace {

/// `trains`: the optimizer is judged, too.
RunConfig read_run_config(const std::string& text, const std::string& name,
                          const std::vector<std::string>& overrides,
                          const std::optional<std::string>& layout_option, const OwnParts& own, bool trains) {
  schema::RunConfig config;
  Document document(config, text, name);
  for (const auto& assignment : overrides) document.apply(assignment);
  if (own.model) state_own_model(*own.model, config, document);
  if (own.samples.train != nullptr) state_own_samples(own.samples, *config.mutable_data(), document);
  if (config.has_model()) fill_varied(*config.mutable_model(), document, "model");
  check_rules(document);
  pin_overridden_paths(config, document);
  const layout::Layout layout = read_layout(*config.mutable_parallel(), document, layout_option);
  fill_defaults(config);
  write_layout(layout, *config.mutable_parallel());
  fill_preset_defaults(*config.mutable_model());
  const bool states_virtual_replicas = config.trainer().has_virtual_replicas();
  if (!states_virtual_replicas)
    config.mutable_trainer()->set_virtual_replicas(
        resolved_virtual_replicas({.global_batch = config.trainer().global_batch()}));

  ModelSpec model = expand_model(config.model(), document, "model");
  const bool is_preset = config.model().preset_case() != schema::Model::PRESET_NOT_SET;
  if (is_preset && mixes_labels(config.data())) model::read_label_mixtures(model);
  std::shared_ptr<const model::Graph> graph;
  try {
    graph = model::share_graph(model);
    require_countable(*graph);
  } catch (const ConfigError& error) {
    document.refuse("model", error.what());
  }
  fit_data_to_model(*config.mutable_data(), model, document);
  check_combinations(config, model, *graph, layout, document);

  RunConfig run = convert(config, std::move(model), layout);
  run.group_rates = resolve_groups(config.optimizer(), *graph, document);
  if (trains) check_scaled(run.optimizer, run.group_rates, *graph, document);
  run.graph = std::move(graph);
  run.states_virtual_replicas = states_virtual_replicas;
  run.data.own_train = own.samples.train;
  run.data.own_eval = own.samples.eval;
  find_paths(config, run);
  if (!config.parallel().profile().empty())
    run.parallel.profile = read_profile(find_path(run.relative_to, config.parallel().profile()), document);
  run.effective_text = "# Every default is filled in; reads back as the same run.\n" + to_text(config);
  run.fields = flatten(config);
  run.config_hash = hash_of(run.fields);
  run.math_fields = math_fields(config, run.model);
  run.math_hash = hash_of(run.math_fields);
  return run;
}

}  // namespace

RunConfig parse_run_config(const std::string& text, const std::string& name,
                           const std::vector<std::string>& overrides,
                           const std::optional<std::string>& layout, const OwnParts& own) {
  return read_run_config(text, name, overrides, layout, own, true);
}

std::string kept_text(const RunConfig& config) {
  const bool reads_files =
      config.data.kind != data::DataKind::synthetic && config.data.kind != data::DataKind::own;
  std::error_code unknown;
  const fs::path here = fs::current_path(unknown);
  const bool names_paths = reads_files || config.parallel.profile || !config.checkpoint.resume_path.empty() ||
                           !config.weights.from.empty();
  if (!names_paths || !config.relative_to.empty() || unknown) return config.effective_text;
  return fmt::format("{}relative_to: \"{}\"\n", config.effective_text,
                     google::protobuf::CEscape(here.string()));
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          const std::optional<std::string>& layout) {
  return parse_run_config(read_file(path, "config"), path, overrides, layout);
}

RunConfig load_kept_config(const std::string& path, const std::vector<std::string>& overrides,
                           const std::optional<std::string>& layout) {
  return read_run_config(read_file(path, "config"), path, overrides, layout, {}, false);
}

}  // namespace lockstep::config

namespace lockstep {

Config Config::from_file(const std::string& path) {
  Config config(config::read_file(path, "config"));
  config.name_ = path;
  return config;
}

Config& Config::set(std::string_view path, std::string_view value) {
  assignments_.push_back(fmt::format("{}={}", path, value));
  return *this;
}

}  // namespace lockstep
