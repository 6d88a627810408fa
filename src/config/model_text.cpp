#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <unordered_map>

#include "base/ensure.h"
#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"
#include "model/presets.h"
#include "ops/op.h"

namespace lockstep::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaximumLayers = 100000;
constexpr int kMaximumRank = 8;
constexpr size_t kMaximumName = 512;
constexpr size_t kMaximumSuggestions = 1000;  // names that a wrong one is compared with

const FieldDescriptor& field_of(const Message& message, const char* name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(name);
  ensure(field != nullptr,
         fmt::format("the schema's {} has no field '{}'", message.GetDescriptor()->name(), name));
  return *field;
}

/// Copies between an op's options and its message, field by field of the same name. Enumerators have equal
/// numbers.
class ReadOption {
 public:
  explicit ReadOption(const Message& message) : message_(message), reflection_(*message.GetReflection()) {}
  void operator()(const char* name, int64_t& v) const {
    v = reflection_.GetInt64(message_, &field_of(message_, name));
  }
  void operator()(const char* name, bool& v) const {
    v = reflection_.GetBool(message_, &field_of(message_, name));
  }
  void operator()(const char* name, float& v) const {
    v = reflection_.GetFloat(message_, &field_of(message_, name));
  }
  void operator()(const char* name, double& v) const {
    v = reflection_.GetDouble(message_, &field_of(message_, name));
  }
  void operator()(const char* name, std::string& v) const {
    v = reflection_.GetString(message_, &field_of(message_, name));
  }
  void operator()(const char* name, std::vector<CustomAttribute>& v) const {
    const auto& field = field_of(message_, name);
    for (int i = 0; i < reflection_.FieldSize(message_, &field); ++i) {
      const auto& one =
          dynamic_cast<const schema::Attribute&>(reflection_.GetRepeatedMessage(message_, &field, i));
      v.push_back({one.name(), one.value()});
    }
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char* name, Enum& v) const {
    v = static_cast<Enum>(reflection_.GetEnumValue(message_, &field_of(message_, name)));
  }

 private:
  const Message& message_;
  const google::protobuf::Reflection& reflection_;
};

class WriteOption {
 public:
  explicit WriteOption(Message& message) : message_(message), reflection_(*message.GetReflection()) {}
  void operator()(const char* name, int64_t v) const {
    reflection_.SetInt64(&message_, &field_of(message_, name), v);
  }
  void operator()(const char* name, bool v) const {
    reflection_.SetBool(&message_, &field_of(message_, name), v);
  }
  void operator()(const char* name, float v) const {
    reflection_.SetFloat(&message_, &field_of(message_, name), v);
  }
  void operator()(const char* name, double v) const {
    reflection_.SetDouble(&message_, &field_of(message_, name), v);
  }
  void operator()(const char* name, const std::string& v) const {
    reflection_.SetString(&message_, &field_of(message_, name), v);
  }
  void operator()(const char* name, const std::vector<CustomAttribute>& v) const {
    for (const CustomAttribute& attribute : v) {
      auto& one =
          dynamic_cast<schema::Attribute&>(*reflection_.AddMessage(&message_, &field_of(message_, name)));
      one.set_name(attribute.name);
      one.set_value(attribute.value);
    }
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char* name, Enum v) const {
    reflection_.SetEnumValue(&message_, &field_of(message_, name), static_cast<int>(v));
  }

 private:
  Message& message_;
  const google::protobuf::Reflection& reflection_;
};

Op read_op(const schema::Layer& layer) {
  const auto* oneof = layer.GetDescriptor()->FindOneofByName("op");
  const auto* member = layer.GetReflection()->GetOneofFieldDescriptor(layer, oneof);
  ensure(member != nullptr, "a layer without op passed the check of the schema");
  for (const auto& row : ops::op_table()) {
    if (row.name != member->name()) continue;
    Op op = row.make();
    const ReadOption read(layer.GetReflection()->GetMessage(layer, member));
    std::visit([&](auto& options) { options.visit(read); }, op);
    return op;
  }
  throw InternalError(fmt::format("op {} of the schema is not in the op table", member->name()));
}

void write_op(const Op& op, schema::Layer& layer) {
  const auto* member = layer.GetDescriptor()->FindFieldByName(std::string(name_of(op)));
  if (!member)
    throw ConfigError(
        fmt::format("layer {}: op {} cannot be written in a config", layer.name(), name_of(op)));
  const WriteOption write(*layer.GetReflection()->MutableMessage(&layer, member));
  Op copy = op;  // visit() is for reading and writing alike, so it wants something mutable
  std::visit([&](auto& options) { options.visit(write); }, copy);
}

bool valid_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  });
}

Shape to_shape(const google::protobuf::RepeatedField<int64_t>& dims) {
  return Shape(std::vector<int64_t>(dims.begin(), dims.end()));
}

/// Writes the layers of a plain model out one by one: repeats blocks, and finds what each input's name means.
class Expander {
 public:
  Expander(const Document& document, std::string path) : document_(document), path_(std::move(path)) {}

  ModelSpec expand(const schema::Model& model) {
    for (int i = 0; i < model.input_size(); ++i) add_input(model.input(i), at("input", i));
    const std::string first = spec_.inputs.empty() ? "" : spec_.inputs.front().name;
    scopes_.push_back({"", std::nullopt});
    add_layers(model.layer(), path_, first);
    return std::move(spec_);
  }

 private:
  struct Scope {
    std::string prefix;                ///< of the names in it: "", "h.3."
    std::optional<std::string> input;  ///< what "^" means; nothing outside of blocks
  };

  std::string at(const char* field, int index) const { return at(path_, field, index); }
  static std::string at(const std::string& path, const char* field, int index) {
    return fmt::format("{}{}{}[{}]", path, path.empty() ? "" : ".", field, index);
  }

  void claim(const std::string& name, const std::string& written, const std::string& output,
             const std::string& path) {
    if (!valid_name(written))
      document_.refuse(path + ".name",
                       fmt::format("'{}' must consist of letters, digits, '_', '-', '.' and '/'", written));
    if (name.size() > kMaximumName)
      document_.refuse(path + ".name",
                       fmt::format("a name has at most {} characters, including its blocks' names, found {}",
                                   kMaximumName, name.size()));
    if (!outputs_.emplace(name, output).second)
      document_.refuse(path + ".name", fmt::format("the name '{}' is used twice", name));
  }

  void add_input(const schema::Input& input, const std::string& path) {
    if (input.shape_size() > kMaximumRank)
      document_.refuse(path + ".shape", fmt::format("expected at most {} dimensions, found {}", kMaximumRank,
                                                    input.shape_size()));
    claim(input.name(), input.name(), input.name(), path);
    const DType type = input.type() == schema::Input::INT32 ? DType::int32 : DType::float32;
    spec_.inputs.push_back({input.name(), {to_shape(input.shape()), type}});
  }

  /// The full name of what `name` means here, looked up from the innermost block outwards.
  std::string resolve(const std::string& name, const std::string& path) const {
    if (name == "^") {
      if (!scopes_.back().input)
        document_.refuse(path, "'^' is a block's input, but this layer is in no block");
      return *scopes_.back().input;
    }
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = outputs_.find(scope->prefix + name); found != outputs_.end())
        return found->second;
    std::vector<std::string> known;
    for (const auto& scope : scopes_)
      for (const auto& [full, output] : outputs_)
        if (full.starts_with(scope.prefix) && known.size() < kMaximumSuggestions)
          known.push_back(full.substr(scope.prefix.size()));
    document_.refuse(path, fmt::format("'{}' is neither a model input nor an earlier layer{}", name,
                                       did_you_mean(name, known)));
  }

  /// A tie names "layer.parameter"; the layer is looked up as inputs are, and left to the graph where it
  /// comes later.
  std::string resolve_parameter(const std::string& name) const {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) return name;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (outputs_.contains(scope->prefix + name.substr(0, dot))) return scope->prefix + name;
    return name;
  }

  /// Returns the name of the last layer's output. `previous` is what the first layer reads.
  std::string add_layers(const google::protobuf::RepeatedPtrField<schema::Layer>& layers,
                         const std::string& path, std::string previous) {
    for (int i = 0; i < layers.size(); ++i) {
      const auto& layer = layers.Get(i);
      const std::string place = at(path, "layer", i);
      if (layer.input().empty() && previous.empty())
        document_.refuse(place, "has no input: there is no layer before it, and the model has no inputs");
      std::vector<std::string> inputs;
      for (int k = 0; k < layer.input_size(); ++k)
        inputs.push_back(resolve(layer.input(k), at(place, "input", k)));
      if (inputs.empty()) inputs.push_back(previous);
      const std::string name = scopes_.back().prefix + layer.name();
      if (layer.has_block()) {
        previous = add_block(layer, name, place, inputs);
        claim(name, layer.name(), previous, place);
        continue;
      }
      if (spec_.layers.size() >= kMaximumLayers)
        document_.refuse(place, fmt::format("a model has at most {} layers", kMaximumLayers));
      claim(name, layer.name(), name, place);
      Layer plain{.name = name, .op = read_op(layer), .inputs = std::move(inputs)};
      for (const auto& tie : layer.tie())
        plain.ties.push_back({tie.parameter(), resolve_parameter(tie.with())});
      spec_.layers.push_back(std::move(plain));
      previous = name;
    }
    return previous;
  }

  std::string add_block(const schema::Layer& layer, const std::string& name, const std::string& place,
                        const std::vector<std::string>& inputs) {
    if (inputs.size() > 1)
      document_.refuse(place, fmt::format("a block takes one input, found {}", inputs.size()));
    if (layer.tie_size() > 0)
      document_.refuse(place, "a block has no parameters to tie; tie those of its layers");
    std::string previous = inputs.front();
    for (int64_t i = 0; i < layer.block().repeat(); ++i) {
      scopes_.push_back({fmt::format("{}.{}.", name, i), previous});
      previous = layer.block().vary().empty()
                     ? add_layers(layer.block().layer(), place + ".block", previous)
                     : add_layers(block_of_repetition(layer.block(), i, document_, place + ".block").layer(),
                                  place + ".block", previous);
      scopes_.pop_back();
    }
    return previous;
  }

  const Document& document_;
  std::string path_;
  ModelSpec spec_;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, std::string>
      outputs_;  ///< full name of a layer, block or input -> of its value
};

ModelSpec expand_vit(const schema::Vit& vit) {
  return model::make_vit({.image = to_shape(vit.image()),
                          .patch = vit.patch(),
                          .layers = vit.layers(),
                          .heads = vit.heads(),
                          .width = vit.width(),
                          .hidden = vit.hidden(),
                          .classes = vit.classes(),
                          .dropout = vit.dropout(),
                          .attention_dropout = vit.attention_dropout(),
                          .pools_mean = vit.pool() == schema::Vit::MEAN,
                          .epsilon = vit.epsilon(),
                          .label_smoothing = vit.label_smoothing(),
                          .gelu = static_cast<GeluKind>(vit.gelu())});
}

ModelSpec expand_preset(const schema::Model& model) {
  if (model.has_mlp()) {
    const auto& mlp = model.mlp();
    return model::make_mlp({.image = to_shape(mlp.image()),
                            .hidden = {mlp.hidden().begin(), mlp.hidden().end()},
                            .classes = mlp.classes(),
                            .dropout = mlp.dropout(),
                            .label_smoothing = mlp.label_smoothing()});
  }
  if (model.has_lenet()) {
    const auto& lenet = model.lenet();
    return model::make_lenet({.image = to_shape(lenet.image()),
                              .classes = lenet.classes(),
                              .dropout = lenet.dropout(),
                              .batch_norm = lenet.batch_norm(),
                              .label_smoothing = lenet.label_smoothing()});
  }
  if (model.has_resnet()) {
    const auto& resnet = model.resnet();
    return model::make_resnet({.image = to_shape(resnet.image()),
                               .depth = resnet.depth(),
                               .classes = resnet.classes(),
                               .small_stem = resnet.small_stem(),
                               .zero_init = resnet.zero_init(),
                               .width = resnet.width(),
                               .groups = resnet.groups(),
                               .width_per_group = resnet.width_per_group(),
                               .label_smoothing = resnet.label_smoothing()});
  }
  if (model.has_vgg()) {
    const auto& vgg = model.vgg();
    return model::make_vgg({.image = to_shape(vgg.image()),
                            .depth = vgg.depth(),
                            .classes = vgg.classes(),
                            .batch_norm = vgg.batch_norm(),
                            .dropout = vgg.dropout(),
                            .width = vgg.width(),
                            .hidden = vgg.hidden(),
                            .label_smoothing = vgg.label_smoothing()});
  }
  if (model.has_llama()) {
    const auto& llama = model.llama();
    return model::make_llama({.vocabulary = llama.vocabulary(),
                              .context = llama.context(),
                              .layers = llama.layers(),
                              .heads = llama.heads(),
                              .key_value_heads = llama.key_value_heads(),
                              .width = llama.width(),
                              .hidden = llama.hidden(),
                              .theta = llama.theta(),
                              .epsilon = llama.epsilon(),
                              .init_std = llama.init_std(),
                              .tied_head = llama.tied_head(),
                              .label_smoothing = llama.label_smoothing(),
                              .scaling_factor = llama.scaling_factor(),
                              .low_frequency_factor = llama.low_frequency_factor(),
                              .high_frequency_factor = llama.high_frequency_factor(),
                              .original_positions = llama.original_positions()});
  }
  if (model.has_lstm()) {
    const auto& lstm = model.lstm();
    return model::make_lstm({.vocabulary = lstm.vocabulary(),
                             .context = lstm.context(),
                             .layers = lstm.layers(),
                             .width = lstm.width(),
                             .units = lstm.units(),
                             .dropout = lstm.dropout(),
                             .classes = lstm.classes(),
                             .bidirectional = lstm.bidirectional(),
                             .pools_last = lstm.pool() == schema::LstmModel::LAST,
                             .tied_head = lstm.tied_head(),
                             .label_smoothing = lstm.label_smoothing()});
  }
  if (model.has_vit()) return expand_vit(model.vit());
  const auto& gpt = model.gpt();
  return model::make_gpt({.vocabulary = gpt.vocabulary(),
                          .context = gpt.context(),
                          .layers = gpt.layers(),
                          .heads = gpt.heads(),
                          .width = gpt.width(),
                          .dropout = gpt.dropout(),
                          .bias = gpt.bias(),
                          .tied_head = gpt.tied_head(),
                          .label_smoothing = gpt.label_smoothing(),
                          .epsilon = gpt.epsilon(),
                          .gelu = static_cast<GeluKind>(gpt.gelu())});
}

}  // namespace

void fill_preset_defaults(schema::Model& model) {
  const auto fill = [](auto& image, std::initializer_list<int64_t> shape) {
    if (image.empty()) image.Add(shape.begin(), shape.end());
  };
  if (model.has_mlp()) fill(*model.mutable_mlp()->mutable_image(), {28, 28, 1});
  if (model.has_lenet()) fill(*model.mutable_lenet()->mutable_image(), {28, 28, 1});
  if (model.has_resnet()) fill(*model.mutable_resnet()->mutable_image(), {224, 224, 3});
  if (model.has_vgg()) fill(*model.mutable_vgg()->mutable_image(), {224, 224, 3});
  if (model.has_vit()) fill(*model.mutable_vit()->mutable_image(), {224, 224, 3});
}

ModelSpec expand_model(const schema::Model& model, const Document& document, const std::string& path) {
  const bool preset = model.preset_case() != schema::Model::PRESET_NOT_SET;
  const bool plain = model.layer_size() > 0 || model.input_size() > 0;
  if (preset && plain) document.refuse(path, "has both a preset and layers; keep only one of them");
  if (!preset && model.layer_size() == 0)
    document.refuse(path,
                    "needs a preset (mlp, lenet, resnet, vgg, vit, gpt, llama or lstm) or inputs and layers");
  const auto with_frozen = [&](ModelSpec spec) {
    spec.frozen.assign(model.frozen().begin(), model.frozen().end());
    return spec;
  };
  if (!preset) return with_frozen(Expander(document, path).expand(model));
  const int rank = model.has_mlp() ? model.mlp().image_size() : 0;
  if (rank > kMaximumRank)
    document.refuse(path + ".mlp.image",
                    fmt::format("expected at most {} dimensions, found {}", kMaximumRank, rank));
  try {
    return with_frozen(expand_preset(model));
  } catch (const ConfigError& error) {
    document.refuse(path, error.what());
  }
}

schema::Model plain_model(const ModelSpec& spec) {
  schema::Model model;
  for (const auto& input : spec.inputs) {
    auto& written = *model.add_input();
    written.set_name(input.name);
    for (const int64_t dim : input.spec.shape.dims()) written.add_shape(dim);
    if (input.spec.dtype != DType::float32 && input.spec.dtype != DType::int32)
      throw ConfigError(fmt::format("input {}: expected element type float32 or int32, found {}", input.name,
                                    name_of(input.spec.dtype)));
    written.set_type(input.spec.dtype == DType::int32 ? schema::Input::INT32 : schema::Input::FLOAT32);
  }
  for (const auto& layer : spec.layers) {
    auto& written = *model.add_layer();
    written.set_name(layer.name);
    for (const auto& input : layer.inputs) written.add_input(input);
    for (const auto& tie : layer.ties) {
      auto& written_tie = *written.add_tie();
      written_tie.set_parameter(tie.parameter);
      written_tie.set_with(tie.with);
    }
    write_op(layer.op, written);
  }
  for (const auto& pattern : spec.frozen) model.add_frozen(pattern);
  return model;
}

std::string model_to_text(const ModelSpec& model) { return to_text(plain_model(model)); }

ModelSpec model_from_text(const std::string& text, const std::string& name) {
  schema::Model model;
  const Document document(model, text, name);
  fill_varied(model, document, "");
  check_rules(document);
  fill_defaults(model);
  return expand_model(model, document, "");
}

}  // namespace lockstep::config
