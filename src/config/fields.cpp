#include <fmt/format.h>

#include "base/ensure.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void flatten_into(const Message& message, const std::string& path,
                  std::vector<std::pair<std::string, std::string>>& pairs) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->oneof_decl_count(); ++i) {
    const auto* oneof = descriptor->oneof_decl(i);
    if (const auto* member = reflection->GetOneofFieldDescriptor(message, oneof))
      pairs.emplace_back(below(path, oneof->name()), member->name());
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const int count =
        field->is_repeated() ? reflection->FieldSize(message, field) : reflection->HasField(message, field);
    for (int k = 0; k < count; ++k) {
      const std::string place =
          below(path, field->is_repeated() ? fmt::format("{}[{}]", field->name(), k) : field->name());
      if (field->message_type()) {
        flatten_into(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, k)
                                          : reflection->GetMessage(message, field),
                     place, pairs);
      } else {
        std::string value;
        google::protobuf::TextFormat::Printer().PrintFieldValueToString(
            message, field, field->is_repeated() ? k : -1, &value);
        pairs.emplace_back(place, value);
      }
    }
  }
}

}  // namespace

void fill_defaults(Message& message) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->oneof_decl_count(); ++i) {
    const auto* oneof = descriptor->oneof_decl(i);
    const std::string& otherwise = oneof->options().GetExtension(schema::otherwise);
    if (otherwise.empty() || reflection->HasOneof(message, oneof)) continue;
    const auto* member = descriptor->FindFieldByName(otherwise);
    ensure(member && (member->message_type() || member->cpp_type() == FieldDescriptor::CPPTYPE_BOOL),
           "(otherwise) must name a message or bool of its oneof");
    if (member->message_type())
      reflection->MutableMessage(&message, member);
    else
      reflection->SetBool(&message, member, member->default_value_bool());
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->is_repeated()) {
      if (field->message_type())
        for (int k = 0; k < reflection->FieldSize(message, field); ++k)
          fill_defaults(*reflection->MutableRepeatedMessage(&message, field, k));
      continue;
    }
    const bool set = reflection->HasField(message, field);
    if (field->containing_oneof() && !set) continue;
    if (field->message_type()) {
      fill_defaults(*reflection->MutableMessage(&message, field));
      continue;
    }
    if (set || !field->has_default_value()) continue;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(&message, field, field->default_value_int32());
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(&message, field, field->default_value_int64());
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(&message, field, field->default_value_uint64());
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        reflection->SetFloat(&message, field, field->default_value_float());
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(&message, field, field->default_value_double());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(&message, field, field->default_value_bool());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnum(&message, field, field->default_value_enum());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection->SetString(&message, field, field->default_value_string());
        break;
      default:
        throw InternalError("a field of the schema has a type that defaults cannot be filled in for");
    }
  }
}

std::vector<std::pair<std::string, std::string>> flatten(const Message& message) {
  std::vector<std::pair<std::string, std::string>> pairs;
  flatten_into(message, "", pairs);
  return pairs;
}

std::string to_text(const Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  ensure(printer.PrintToString(message, &text), "a config could not be printed");
  return text;
}

}  // namespace lockstep::config
