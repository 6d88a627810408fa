#include <fmt/format.h>

#include <cmath>
#include <set>

#include "base/index.h"
#include "exchange/config_json.h"
#include "exchange/family.h"
#include "exchange/layer_match.h"
#include "model/presets.h"

namespace lockstep::exchange {
namespace {

// GPT-2's linear layers are transformers' Conv1D, whose weights are [in, out].
constexpr std::string_view kGpt2 = "a GPT-2", kTransformer = "transformer.";

/// As the preset's field says it.
std::string_view name_of(GeluKind kind) { return kind == GeluKind::erf ? "ERF" : "TANH"; }

bool resembles_gpt2(const ModelSpec& model) {
  return first_of<PositionEmbedding>(model) != nullptr && first_of<Attention>(model) != nullptr;
}

model::GptOptions gpt_options(const ModelSpec& model) {
  const auto& embedding = need<Embedding>(model, kGpt2);
  const auto& norm = need<LayerNorm>(model, kGpt2);
  const auto* gelu = first_of<Gelu>(model);  // without one, it is no GPT-2, as comparing all layers finds
  return {.vocabulary = embedding.vocabulary,
          .context = context_of(model, kGpt2),
          .layers = count_of<Attention>(model),
          .heads = need<Attention>(model, kGpt2).heads,
          .width = embedding.width,
          .bias = norm.bias,
          .tied_head = has_tied_head(model),
          .epsilon = norm.epsilon,
          .gelu = gelu == nullptr ? GeluKind::tanh : gelu->kind};
}

/// The biases that transformers has, and a model without biases has not. Zeros change nothing.
void add_zero_biases(const ModelSpec& preset, Mapping& mapping) {
  const model::Graph graph = model::make_graph(preset);
  for (const auto& node : graph.nodes) {
    const bool has_bias = std::holds_alternative<LayerNorm>(node.op) ||
                          (std::holds_alternative<Linear>(node.op) && node.name != "lm_head");
    if (has_bias)
      mapping.implied.push_back({.name = fmt::format("{}{}.bias", kTransformer, node.name),
                                 .shape = {graph.parameter(node.parameters[0]).spec.shape[0]},
                                 .written = true});
  }
}

Mapping gpt2_mapping(const ModelSpec& model) {
  const model::GptOptions options = gpt_options(model);
  const ModelSpec preset = model::make_gpt(options);
  const LayerMatch match = match_layers(model, preset, kGpt2);
  const model::Graph graph = model::make_graph(model), expected = model::make_graph(preset);
  Mapping mapping{.family = "gpt2",
                  .pieces = std::vector<std::vector<Piece>>(graph.parameters.size()),
                  .worthless = {".attn.bias", ".attn.masked_bias"}};  // causal masks
  for (int p = 0; p < static_cast<int>(expected.parameters.size()); ++p) {
    const std::string& name = expected.parameter(p).name;
    const int parameter = nth(match.parameters, p);
    const Shape& shape = graph.parameter(parameter).spec.shape;
    const bool is_head = name == "lm_head.weight";
    const bool is_matrix = name.ends_with(".weight") && name.starts_with("h.") && shape.rank() == 2;
    const std::string there = is_head ? name : std::string(kTransformer) + name;
    Piece piece = is_matrix ? transposed(there, shape) : as_here(there, shape);
    piece.may_be_longer = name == "wpe.weight";
    nth(mapping.pieces, parameter) = {piece};
    if (name == "wte.weight" && options.tied_head)
      mapping.implied.push_back({.name = "lm_head.weight", .shape = shape, .parameter = parameter});
  }
  if (!options.bias) add_zero_biases(preset, mapping);
  return mapping;
}

float rate_behind(const LayerMatch& match, const std::string& layer) {
  const auto found = match.dropout_after.find(layer);
  return found == match.dropout_after.end() ? 0 : found->second;
}

std::string gpt2_config(const ModelSpec& model, const ConfigFacts& facts) {
  const model::GptOptions options = gpt_options(model);
  const LayerMatch match = match_layers(model, model::make_gpt(options), kGpt2);
  const nlohmann::json end = facts.end_of_text ? nlohmann::json(*facts.end_of_text) : nlohmann::json(nullptr);
  const nlohmann::ordered_json config{
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", options.gelu == GeluKind::erf ? "gelu" : "gelu_new"},
      {"attn_pdrop", number_of(need<Attention>(model, kGpt2).dropout)},
      {"bos_token_id", end},
      {"embd_pdrop", number_of(rate_behind(match, "wpe"))},
      {"eos_token_id", end},
      {"initializer_range", 0.02},
      {"layer_norm_epsilon", number_of(options.epsilon)},
      {"n_embd", options.width},
      {"n_head", options.heads},
      {"n_inner", nullptr},
      {"n_layer", options.layers},
      {"n_positions", need<PositionEmbedding>(model, kGpt2).positions},
      {"resid_pdrop", number_of(rate_behind(match, "h.0.attn.c_proj"))},
      {"scale_attn_weights", true},
      {"tie_word_embeddings", options.tied_head},
      {"torch_dtype", facts.dtype},
      {"use_cache", true},
      {"vocab_size", options.vocabulary}};
  return config.dump(2) + "\n";
}

model::GptOptions gpt_options(const nlohmann::json& config) {
  model::GptOptions options{.vocabulary = required_field_of<int64_t>(config, "vocab_size"),
                            .context = required_field_of<int64_t>(config, "n_positions"),
                            .layers = required_field_of<int64_t>(config, "n_layer"),
                            .heads = required_field_of<int64_t>(config, "n_head"),
                            .width = required_field_of<int64_t>(config, "n_embd"),
                            .tied_head = field_of(config, "tie_word_embeddings", true),
                            .epsilon = field_of(config, "layer_norm_epsilon", 1e-5f)};
  const auto activation = field_of<std::string>(config, "activation_function", "gelu_new");
  // Three names of one formula, the tanh approximation.
  if (activation == "gelu" || activation == "gelu_python")  // which differ in how they compute the same
    options.gelu = GeluKind::erf;
  else if (!std::set<std::string>{"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}.contains(activation))
    throw ConfigError(fmt::format(
        "config.json: activation_function is {}; lockstep computes only gelu and gelu_new", activation));
  demand<bool>(config, "scale_attn_weights", true, true);
  demand<bool>(config, "scale_attn_by_inverse_layer_idx", false, false);
  demand<bool>(config, "add_cross_attention", false, false);
  demand<int64_t>(config, "n_inner", 4 * options.width, 4 * options.width);
  return options;
}

std::vector<std::string> gpt2_differences(const ModelSpec& model, const nlohmann::json& config) {
  const model::GptOptions theirs = gpt_options(config), ours = gpt_options(model);
  std::vector<std::string> differences;
  note_difference(differences, "vocabulary (vocab_size)", theirs.vocabulary, ours.vocabulary);
  note_difference(differences, "layers (n_layer)", theirs.layers, ours.layers);
  note_difference(differences, "heads (n_head)", theirs.heads, ours.heads);
  note_difference(differences, "width (n_embd)", theirs.width, ours.width);
  note_difference(differences, "tied_head (tie_word_embeddings)", theirs.tied_head, ours.tied_head);
  note_difference(differences, "epsilon (layer_norm_epsilon)", theirs.epsilon, ours.epsilon);
  note_difference(differences, "gelu (activation_function)", name_of(theirs.gelu), name_of(ours.gelu));
  return differences;
}

std::string gpt2_preset(const nlohmann::json& config, int64_t context) {
  const model::GptOptions options = gpt_options(config);
  return fmt::format(
      "model {{\n  gpt {{\n    vocabulary: {}\n    context: {}\n    layers: {}\n    heads: {}\n    width: "
      "{}\n"
      "    tied_head: {}\n    epsilon: {}\n    gelu: {}\n  }}\n}}\n",
      options.vocabulary, context > 0 ? context : options.context, options.layers, options.heads,
      options.width, options.tied_head, options.epsilon, name_of(options.gelu));
}

}  // namespace

const Family families::kGpt2{.name = "gpt2",
                             .format = Format::huggingface,
                             .resembles = resembles_gpt2,
                             .mapping = gpt2_mapping,
                             .config_text = gpt2_config,
                             .differences = gpt2_differences,
                             .preset_text = gpt2_preset};

}  // namespace lockstep::exchange
