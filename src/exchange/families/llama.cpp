#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/index.h"
#include "exchange/config_json.h"
#include "exchange/family.h"
#include "exchange/layer_match.h"
#include "model/presets.h"

namespace lockstep::exchange {
namespace {

constexpr std::string_view kLlama = "a Llama", kQkv = "self_attn.qkv_proj.weight";

bool resembles_llama(const ModelSpec& model) {
  return first_of<RotaryEmbedding>(model) != nullptr && first_of<Attention>(model) != nullptr;
}

/// Units of the MLP: those of the layer that SiLU reads.
int64_t hidden_of(const ModelSpec& model) {
  std::string input;
  for (const auto& layer : model.layers)
    if (std::holds_alternative<Silu>(layer.op) && input.empty()) input = layer.inputs.at(0);
  for (const auto& layer : model.layers)
    if (const auto* linear = std::get_if<Linear>(&layer.op); linear != nullptr && layer.name == input)
      return linear->units;
  refuse_without("silu behind a linear layer", kLlama);
}

model::LlamaOptions llama_options(const ModelSpec& model) {
  const auto& embedding = need<Embedding>(model, kLlama);
  const auto& attention = need<Attention>(model, kLlama);
  const auto& rotary = need<RotaryEmbedding>(model, kLlama);
  return {.vocabulary = embedding.vocabulary,
          .context = context_of(model, kLlama),
          .layers = count_of<Attention>(model),
          .heads = attention.heads,
          .key_value_heads = attention.key_value_heads > 0 ? attention.key_value_heads : attention.heads,
          .width = embedding.width,
          .hidden = hidden_of(model),
          .theta = rotary.theta,
          .epsilon = need<RmsNorm>(model, kLlama).epsilon,
          .tied_head = has_tied_head(model),
          .scaling_factor = rotary.scaling_factor,
          .low_frequency_factor = rotary.low_frequency_factor,
          .high_frequency_factor = rotary.high_frequency_factor,
          .original_positions = rotary.original_positions};
}

/// The rows of the one matrix here that are three there.
std::vector<Piece> query_key_value(const std::string& block, const model::LlamaOptions& options) {
  const int64_t head = options.width / options.heads, queries = options.heads * head,
                keys = options.key_value_heads * head;
  const auto rows = [&](const char* name, int64_t from, int64_t count) {
    return as_here(fmt::format("{}self_attn.{}.weight", block, name), Shape{count, options.width},
                   from * options.width);
  };
  return {rows("q_proj", 0, queries), rows("k_proj", queries, keys), rows("v_proj", queries + keys, keys)};
}

Mapping llama_mapping(const ModelSpec& model) {
  const model::LlamaOptions options = llama_options(model);
  const ModelSpec preset = model::make_llama(options);
  const LayerMatch match = match_layers(model, preset, kLlama);
  const model::Graph graph = model::make_graph(model), expected = model::make_graph(preset);
  Mapping mapping{.family = "llama",
                  .pieces = std::vector<std::vector<Piece>>(graph.parameters.size()),
                  .worthless = {".rotary_emb.inv_freq"}};
  for (int p = 0; p < static_cast<int>(expected.parameters.size()); ++p) {
    const std::string& name = expected.parameter(p).name;
    const int parameter = nth(match.parameters, p);
    const Shape& shape = graph.parameter(parameter).spec.shape;
    const std::string there = name == "lm_head.weight" ? name : "model." + name;
    nth(mapping.pieces, parameter) =
        there.ends_with(kQkv) ? query_key_value(there.substr(0, there.size() - kQkv.size()), options)
                              : std::vector<Piece>{as_here(there, shape)};
    if (name == "embed_tokens.weight" && options.tied_head)
      mapping.implied.push_back({.name = "lm_head.weight", .shape = shape, .parameter = parameter});
  }
  return mapping;
}

/// Positions as versions from 5 on say them, in rope_parameters.
nlohmann::ordered_json rope_parameters(const model::LlamaOptions& options) {
  const double theta = number_of(options.theta);
  if (options.scaling_factor == 0) return {{"rope_theta", theta}, {"rope_type", "default"}};
  return {{"rope_theta", theta},
          {"rope_type", "llama3"},
          {"factor", number_of(options.scaling_factor)},
          {"low_freq_factor", number_of(options.low_frequency_factor)},
          {"high_freq_factor", number_of(options.high_frequency_factor)},
          {"original_max_position_embeddings", options.original_positions}};
}

std::string llama_config(const ModelSpec& model, const ConfigFacts& facts) {
  const model::LlamaOptions options = llama_options(model);
  const nlohmann::json end = facts.end_of_text ? nlohmann::json(*facts.end_of_text) : nlohmann::json(nullptr);
  // Before version 5, scaled positions stood in rope_scaling, and theta beside them.
  nlohmann::ordered_json scaling = nullptr;
  if (options.scaling_factor > 0) {
    scaling = rope_parameters(options);
    scaling.erase("rope_theta");
  }
  const nlohmann::ordered_json config{
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"attention_bias", false},
      {"attention_dropout", number_of(need<Attention>(model, kLlama).dropout)},
      {"bos_token_id", end},
      {"eos_token_id", end},
      {"head_dim", options.width / options.heads},
      {"hidden_act", "silu"},
      {"hidden_size", options.width},
      {"initializer_range", number_of(need<Embedding>(model, kLlama).init_std)},
      {"intermediate_size", options.hidden},
      {"max_position_embeddings", options.context},
      {"mlp_bias", false},
      {"num_attention_heads", options.heads},
      {"num_hidden_layers", options.layers},
      {"num_key_value_heads", options.key_value_heads},
      {"rms_norm_eps", number_of(options.epsilon)},
      {"rope_parameters", rope_parameters(options)},
      {"rope_scaling", scaling},
      {"rope_theta", number_of(options.theta)},
      {"tie_word_embeddings", options.tied_head},
      {"torch_dtype", facts.dtype},
      {"use_cache", true},
      {"vocab_size", options.vocabulary}};
  return config.dump(2) + "\n";
}

/// Reads rope_scaling or rope_parameters, both of which a file may have. Refuses what is not computed.
void read_positions(const std::string& field, const nlohmann::json& positions, model::LlamaOptions& options) {
  if (!positions.is_object())
    throw ConfigError(fmt::format("config.json: {} is {}; expected an object with a rope_type", field,
                                  positions.dump(-1, ' ', true)));
  const auto type =
      field_of<std::string>(positions, "rope_type", field_of<std::string>(positions, "type", "default"));
  if (type == "llama3") {
    options.scaling_factor = required_field_of<float>(positions, "factor");
    options.low_frequency_factor = required_field_of<float>(positions, "low_freq_factor");
    options.high_frequency_factor = required_field_of<float>(positions, "high_freq_factor");
    options.original_positions =
        field_of<int64_t>(positions, "original_max_position_embeddings", options.context);
    for (const float factor :
         {options.scaling_factor, options.low_frequency_factor, options.high_frequency_factor})
      if (!(factor > 0))
        throw ConfigError(
            fmt::format("config.json: {} has a factor of {}; factors must be positive", field, factor));
  } else if (type != "default") {
    throw ConfigError(
        fmt::format("config.json: {} asks for rotary positions of type '{}'; lockstep computes only "
                    "'default' and 'llama3'",
                    field, type));
  }
  constexpr std::string_view kScaling[] = {"factor", "low_freq_factor", "high_freq_factor",
                                           "original_max_position_embeddings"};
  for (const auto& [name, value] : positions.items()) {
    if (name == "rope_type" || name == "type" || name == "rope_theta" || value.is_null()) continue;
    if (type == "llama3" && std::ranges::find(kScaling, name) != std::end(kScaling)) continue;
    const bool is_neutral = name.ends_with("factor") && value.is_number() && value.get<double>() == 1;
    if (!is_neutral)
      throw ConfigError(
          fmt::format("config.json: {} has {}: {}, which is not computed for positions of type '{}'", field,
                      name, value.dump(-1, ' ', true), type));
  }
}

/// Sets theta, which may stand in several places, but only once with a value of its own, and the scaling.
void read_all_positions(const nlohmann::json& config, model::LlamaOptions& options) {
  std::optional<float> theta;
  std::string first;
  const auto meet = [&](const std::string& where, const nlohmann::json& object) {
    if (!object.contains("rope_theta") || object["rope_theta"].is_null()) return;
    const auto found = required_field_of<float>(object, "rope_theta");
    if (theta && *theta != found)
      throw ConfigError(
          fmt::format("config.json: {}rope_theta is {}, and {}rope_theta {}; which one the weights were "
                      "trained with is not said",
                      first, *theta, where, found));
    if (!theta) first = where;
    theta = found;
  };
  std::optional<model::LlamaOptions> scaled;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!config.contains(name) || config[name].is_null()) continue;
    model::LlamaOptions found = options;
    read_positions(name, config[name], found);
    if (scaled && *scaled != found)
      throw ConfigError(
          "config.json: rope_parameters and rope_scaling scale positions differently; which one the weights "
          "were trained with is not said");
    scaled = found;
    meet(std::string(name) + ".", config[name]);
  }
  meet("", config);
  if (scaled) options = *scaled;
  options.theta = theta.value_or(10000.0f);
}

model::LlamaOptions llama_options(const nlohmann::json& config) {
  model::LlamaOptions options{.vocabulary = required_field_of<int64_t>(config, "vocab_size"),
                              .context = required_field_of<int64_t>(config, "max_position_embeddings"),
                              .layers = required_field_of<int64_t>(config, "num_hidden_layers"),
                              .heads = required_field_of<int64_t>(config, "num_attention_heads"),
                              .width = required_field_of<int64_t>(config, "hidden_size"),
                              .hidden = required_field_of<int64_t>(config, "intermediate_size"),
                              .epsilon = field_of(config, "rms_norm_eps", 1e-6f),
                              .tied_head = field_of(config, "tie_word_embeddings", false)};
  options.key_value_heads = field_of(config, "num_key_value_heads", options.heads);
  read_all_positions(config, options);
  demand<std::string>(config, "hidden_act", "silu", "silu");
  demand<bool>(config, "attention_bias", false, false);
  demand<bool>(config, "mlp_bias", false, false);
  const int64_t head = options.heads > 0 ? options.width / options.heads : 0;
  demand<int64_t>(config, "head_dim", head, head);
  return options;
}

std::vector<std::string> llama_differences(const ModelSpec& model, const nlohmann::json& config) {
  const model::LlamaOptions theirs = llama_options(config), ours = llama_options(model);
  std::vector<std::string> differences;
  note_difference(differences, "vocabulary (vocab_size)", theirs.vocabulary, ours.vocabulary);
  note_difference(differences, "layers (num_hidden_layers)", theirs.layers, ours.layers);
  note_difference(differences, "heads (num_attention_heads)", theirs.heads, ours.heads);
  note_difference(differences, "key_value_heads (num_key_value_heads)", theirs.key_value_heads,
                  ours.key_value_heads);
  note_difference(differences, "width (hidden_size)", theirs.width, ours.width);
  note_difference(differences, "hidden (intermediate_size)", theirs.hidden, ours.hidden);
  note_difference(differences, "theta (rope_theta)", theirs.theta, ours.theta);
  note_difference(differences, "scaling_factor (factor)", theirs.scaling_factor, ours.scaling_factor);
  if (theirs.scaling_factor > 0 && ours.scaling_factor > 0) {
    note_difference(differences, "low_frequency_factor (low_freq_factor)", theirs.low_frequency_factor,
                    ours.low_frequency_factor);
    note_difference(differences, "high_frequency_factor (high_freq_factor)", theirs.high_frequency_factor,
                    ours.high_frequency_factor);
    note_difference(differences, "original_positions (original_max_position_embeddings)",
                    theirs.original_positions, ours.original_positions);
  }
  note_difference(differences, "epsilon (rms_norm_eps)", theirs.epsilon, ours.epsilon);
  note_difference(differences, "tied_head (tie_word_embeddings)", theirs.tied_head, ours.tied_head);
  return differences;
}

std::string llama_preset(const nlohmann::json& config, int64_t context) {
  const model::LlamaOptions options = llama_options(config);
  const std::string scaling =
      options.scaling_factor == 0
          ? ""
          : fmt::format(
                "    scaling_factor: {}\n    low_frequency_factor: {}\n    high_frequency_factor: {}\n"
                "    original_positions: {}\n",
                options.scaling_factor, options.low_frequency_factor, options.high_frequency_factor,
                options.original_positions);
  return fmt::format(
      "model {{\n  llama {{\n    vocabulary: {}\n    context: {}\n    layers: {}\n    heads: {}\n"
      "    key_value_heads: {}\n    width: {}\n    hidden: {}\n    theta: {}\n{}    epsilon: {}\n"
      "    tied_head: {}\n  }}\n}}\n",
      options.vocabulary, context > 0 ? context : options.context, options.layers, options.heads,
      options.key_value_heads, options.width, options.hidden, options.theta, scaling, options.epsilon,
      options.tied_head);
}

}  // namespace

const Family families::kLlama{.name = "llama",
                              .format = Format::huggingface,
                              .resembles = resembles_llama,
                              .mapping = llama_mapping,
                              .config_text = llama_config,
                              .differences = llama_differences,
                              .preset_text = llama_preset};

}  // namespace lockstep::exchange
