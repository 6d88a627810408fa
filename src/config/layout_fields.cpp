#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "base/ensure.h"
#include "base/index.h"
#include "config/schema.h"

namespace lockstep::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// "1f1b" begins with a digit, as no name in a schema may.
std::string enumerator_of(std::string_view word) {
  std::string name = word == "1f1b" ? "one_f_one_b" : std::string(word);
  for (char& letter : name) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

int default_of(const FieldDescriptor& field) {
  return field.enum_type() ? field.default_value_enum()->number() : field.default_value_int32();
}

/// The field of `key`. The schema must say the same of it as the table of keys: words, limits and defaults.
const FieldDescriptor& field_of(const layout::LayoutKey& key) {
  const std::string name(key.name);
  const auto* field = schema::Parallel::descriptor()->FindFieldByName(name);
  ensure(field != nullptr, "the schema has no field parallel." + name);
  bool same = !field->has_default_value() || default_of(*field) == key.otherwise();
  if (const auto* words = field->enum_type()) {
    same = same && static_cast<size_t>(words->value_count()) == key.words.size();
    for (int i = 0; same && i < words->value_count(); ++i)
      same = words->value(i)->number() == i && words->value(i)->name() == enumerator_of(nth(key.words, i));
  } else {
    const auto& options = field->options();
    same = same && key.words.empty() && options.GetExtension(schema::at_least) == key.lowest &&
           options.GetExtension(schema::at_most) == layout::kMostProcesses;
  }
  ensure(same, fmt::format("the schema's parallel.{} is not the layout's {}", name, name));
  return *field;
}

int get(const Message& message, const FieldDescriptor& field) {
  const auto* reflection = message.GetReflection();
  return field.enum_type() ? reflection->GetEnumValue(message, &field)
                           : reflection->GetInt32(message, &field);
}

void set(Message& message, const FieldDescriptor& field, int value) {
  const auto* reflection = message.GetReflection();
  if (field.enum_type())
    reflection->SetEnumValue(&message, &field, value);
  else
    reflection->SetInt32(&message, &field, value);
}

std::string path_of(const layout::LayoutKey& key) { return fmt::format("parallel.{}", key.name); }

/// Fields that --set states must say what --layout says.
void check_overrides(const schema::Parallel& parallel, const layout::Layout& layout, const Document& document,
                     const std::string& text) {
  for (const auto& key : layout::layout_keys()) {
    const auto& field = field_of(key);
    if (!document.is_overridden(path_of(key)) || !parallel.GetReflection()->HasField(parallel, &field))
      continue;
    if (const int value = get(parallel, field); value != key.get(layout))
      document.refuse(path_of(key),
                      fmt::format("is {}, but --layout {} replaces it; set it in only one of them",
                                  layout::value_text(key, value), text));
  }
}

/// With the config's layout goes what only a layout like it has a use for. What --set states stays, and is
/// refused.
void leave_out_ignored(schema::Parallel& parallel, const layout::Layout& layout, const Document& document) {
  const auto is_from_file = [&](const char* field) {
    return !document.is_overridden(fmt::format("parallel.{}", field));
  };
  if (layout.mode != layout::ServerMode::asynchronous) {
    if (is_from_file("async_learning_rate")) parallel.clear_async_learning_rate();
    if (is_from_file("async_statistics")) parallel.clear_async_statistics();
  }
  const bool dedicated = layout.dedicated_servers() > 0;
  if (!dedicated && is_from_file("server_threads")) parallel.clear_server_threads();
  if ((!dedicated || layout.mode != layout::ServerMode::synchronous) && is_from_file("server_device"))
    parallel.clear_server_device();
  if (layout.sync == layout::SyncMethod::parameter_server && is_from_file("algorithm"))
    parallel.clear_algorithm();
  if (layout.pp == 1 && is_from_file("pipeline") && is_from_file("pipeline.cuts")) parallel.clear_pipeline();
}

}  // namespace

layout::Layout read_layout(schema::Parallel& parallel, Document& document,
                           const std::optional<std::string>& option) {
  if (option) {
    const layout::Layout layout = layout::parse_layout(*option);
    check_overrides(parallel, layout, document, *option);
    for (const auto& key : layout::layout_keys()) document.note(path_of(key), "--layout " + *option);
    leave_out_ignored(parallel, layout, document);
    return layout;
  }
  layout::StatedKeys stated;
  for (const auto& key : layout::layout_keys())
    if (const auto& field = field_of(key); parallel.GetReflection()->HasField(parallel, &field))
      stated.emplace_back(&key, get(parallel, field));
  return layout::make_layout(stated, [&](const layout::LayoutKey& key, const std::string& reason) {
    document.refuse(path_of(key), reason);
  });
}

void write_layout(const layout::Layout& layout, schema::Parallel& parallel) {
  for (const auto& key : layout::layout_keys()) {
    const auto& field = field_of(key);
    const bool left_out = key.words.empty() && key.get(layout) < key.lowest;
    if (layout::has_meaning(key, layout) && !left_out)
      set(parallel, field, key.get(layout));
    else
      parallel.GetReflection()->ClearField(&parallel, &field);
  }
}

}  // namespace lockstep::config
