#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Layers = google::protobuf::RepeatedPtrField<schema::Layer>;

/// A number of a layer, or a block's repetitions.
struct Varied {
  Message* message = nullptr;
  const FieldDescriptor* field = nullptr;
};

/// The layer whose name, and a dot, `path` begins with: the longest such name.
schema::Layer* layer_of(Layers& layers, std::string_view path) {
  schema::Layer* found = nullptr;
  for (auto& layer : layers)
    if (path.starts_with(layer.name() + ".") && (!found || layer.name().size() > found->name().size()))
      found = &layer;
  return found;
}

bool takes_numbers(const FieldDescriptor& field) {
  return !field.is_repeated() && (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                                  field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT ||
                                  field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL);
}

Varied find_varied(Layers& layers, const std::string& path, const Document& document,
                   const std::string& place) {
  schema::Layer* layer = layer_of(layers, path);
  if (layer == nullptr) {
    std::vector<std::string> names;
    for (const auto& one : layers) names.push_back(one.name());
    const std::string name = path.substr(0, path.find('.'));
    document.refuse(place, fmt::format("'{}' must be a layer of the block, a dot, and one of its fields{}",
                                       path, did_you_mean(name, names)));
  }
  const std::string rest = path.substr(layer->name().size() + 1);
  if (layer->has_block() && rest != "repeat")
    return find_varied(*layer->mutable_block()->mutable_layer(), rest, document, place);
  const auto* reflection = layer->GetReflection();
  const auto* op = reflection->GetOneofFieldDescriptor(*layer, layer->GetDescriptor()->FindOneofByName("op"));
  if (op == nullptr)
    document.refuse(place, fmt::format("layer '{}' has no op, so it has no field '{}'", layer->name(), rest));
  Message* message = reflection->MutableMessage(layer, op);
  const auto* field = message->GetDescriptor()->FindFieldByName(rest);
  if (field == nullptr) document.refuse(place, no_such_field(rest, *message->GetDescriptor(), op->name()));
  if (!takes_numbers(*field))
    document.refuse(
        place, fmt::format("'{}' takes {}, which cannot vary; only numbers, and true or false, can", path,
                           expected_value(*field)));
  return {message, field};
}

void set_number(const Varied& varied, double value) {
  const auto* reflection = varied.message->GetReflection();
  switch (varied.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(varied.message, varied.field, static_cast<int64_t>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(varied.message, varied.field, value != 0);
    default:
      return reflection->SetFloat(varied.message, varied.field, static_cast<float>(value));
  }
}

/// What `set_number` makes of a value.
double get_number(const Varied& varied) {
  const auto* reflection = varied.message->GetReflection();
  switch (varied.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection->GetInt64(*varied.message, varied.field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(*varied.message, varied.field) ? 1 : 0;
    default:
      return reflection->GetFloat(*varied.message, varied.field);
  }
}

void check_value(const FieldDescriptor& field, double value, const Document& document,
                 const std::string& place) {
  const std::string text = fmt::format("{}", value);
  std::string fault = number_fault(field, value, text);
  const bool is_whole = value == std::floor(value) && std::abs(value) <= 0x1p53;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL && value != 0 && value != 1)
    fault = fmt::format("expected 1 for true or 0 for false, found {}", text);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 && fault.empty() && !is_whole)
    fault = fmt::format("expected {}, found {}", expected_value(field), text);
  if (!fault.empty()) document.refuse(place, fault);
}

using Varying = google::protobuf::RepeatedPtrField<schema::Vary>;

/// The values of one repetition. A field that is stated in the layers as well is that of the first one.
void apply_varied(const Varying& lists, schema::Block& block, int64_t repetition, const Document& document,
                  const std::string& path) {
  std::set<std::pair<const google::protobuf::Message*, const FieldDescriptor*>> named;
  for (int v = 0; v < lists.size(); ++v) {
    const auto& vary = lists[v];
    const std::string place = fmt::format("{}.vary[{}]", path, v);
    if (vary.value_size() <= repetition) continue;  // check_rules, or the caller, says so
    const double value = vary.value(static_cast<int>(repetition));
    for (int f = 0; f < vary.field_size(); ++f) {
      const std::string field_place = fmt::format("{}.field[{}]", place, f);
      const Varied varied = find_varied(*block.mutable_layer(), vary.field(f), document, field_place);
      check_value(*varied.field, value, document, fmt::format("{}.value[{}]", place, repetition));
      if (!named.emplace(varied.message, varied.field).second)
        document.refuse(field_place, fmt::format("'{}' has two lists of values; keep one", vary.field(f)));
      const bool is_stated = varied.message->GetReflection()->HasField(*varied.message, varied.field);
      const double stated = get_number(varied);
      set_number(varied, vary.value(0));
      if (is_stated && stated != get_number(varied))
        document.refuse(field_place,
                        fmt::format("'{}' is also stated as {}, but is {} in the first repetition; state it "
                                    "in one place",
                                    vary.field(f), stated, vary.value(0)));
      set_number(varied, value);
    }
  }
}

void fill_layers(Layers& layers, const Document& document, const std::string& path) {
  for (int i = 0; i < layers.size(); ++i) {
    auto& layer = *layers.Mutable(i);
    if (!layer.has_block()) continue;
    const std::string place = fmt::format("{}{}layer[{}].block", path, path.empty() ? "" : ".", i);
    const Varying lists = layer.block().vary();
    apply_varied(lists, *layer.mutable_block(), 0, document, place);
    fill_layers(*layer.mutable_block()->mutable_layer(), document, place);
  }
}

}  // namespace

void fill_varied(schema::Model& model, const Document& document, const std::string& path) {
  fill_layers(*model.mutable_layer(), document, path);
}

schema::Block block_of_repetition(const schema::Block& block, int64_t repetition, const Document& document,
                                  const std::string& path) {
  for (int v = 0; v < block.vary_size(); ++v)
    if (block.vary(v).value_size() != block.repeat())
      document.refuse(fmt::format("{}.vary[{}].value", path, v),
                      fmt::format("needs a value for each of {} repetitions, has {}", block.repeat(),
                                  block.vary(v).value_size()));
  schema::Block one;  // without the lists, which are as long as there are repetitions
  *one.mutable_layer() = block.layer();
  apply_varied(block.vary(), one, repetition, document, path);
  return one;
}

}  // namespace lockstep::config
