#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

std::string number(double value) {
  return fmt::format("{}", value == std::floor(value) && std::abs(value) < 1e18
                               ? fmt::format("{}", static_cast<int64_t>(value))
                               : exact(value));
}

/// " of at least 1 and at most 8", or "" without limits.
std::string limits(const FieldDescriptor& field) {
  const auto& options = field.options();
  std::vector<std::string> parts;
  if (options.HasExtension(schema::at_least))
    parts.push_back("at least " + number(options.GetExtension(schema::at_least)));
  if (options.HasExtension(schema::above))
    parts.push_back("above " + number(options.GetExtension(schema::above)));
  if (options.HasExtension(schema::at_most))
    parts.push_back("at most " + number(options.GetExtension(schema::at_most)));
  if (options.HasExtension(schema::below))
    parts.push_back("below " + number(options.GetExtension(schema::below)));
  return parts.empty() ? "" : ", " + join(parts, " and ");
}

bool within_limits(const FieldDescriptor& field, double value) {
  const auto& options = field.options();
  return !(options.HasExtension(schema::at_least) && value < options.GetExtension(schema::at_least)) &&
         !(options.HasExtension(schema::above) && value <= options.GetExtension(schema::above)) &&
         !(options.HasExtension(schema::at_most) && value > options.GetExtension(schema::at_most)) &&
         !(options.HasExtension(schema::below) && value >= options.GetExtension(schema::below));
}

/// What becomes wrong of a number where it is computed with, in float32; "" where nothing does.
std::string float32_fault(const FieldDescriptor& field, double value) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_DOUBLE || value == 0) return "";
  const auto narrow = static_cast<float>(value);
  if (!std::isnormal(narrow)) return "expected a number that float32 holds, 1.2e-38 to 3.4e38 or 0";
  const auto& options = field.options();
  const bool reaches =
      (options.HasExtension(schema::below) && narrow >= options.GetExtension(schema::below)) ||
      (options.HasExtension(schema::above) && narrow <= options.GetExtension(schema::above));
  return reaches ? fmt::format("expected {} also after rounding to float32, found {}", expected_value(field),
                               narrow)
                 : "";
}

/// Well-formed UTF-8 (no overlong forms, surrogates or values beyond U+10FFFF) without control characters:
/// what JSON reports, text protos and terminals all take.
bool printable(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x20 || lead == 0x7f) return false;
    const int length = lead < 0x80                   ? 1
                       : lead >= 0xc2 && lead < 0xe0 ? 2
                       : lead >= 0xe0 && lead < 0xf0 ? 3
                       : lead >= 0xf0 && lead < 0xf5 ? 4
                                                     : 0;
    if (length == 0 || i + static_cast<size_t>(length) > text.size()) return false;
    for (int k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + static_cast<size_t>(k)]) & 0xc0) != 0x80) return false;
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
      return false;
    i += static_cast<size_t>(length);
  }
  return true;
}

/// Calls `visit(value, index)` with each number of a numeric field; index is -1 for singular ones.
void for_each_number(const Message& message, const FieldDescriptor& field,
                     const std::function<void(double, std::string, int)>& visit) {
  const auto* r = message.GetReflection();
  const int count = field.is_repeated() ? r->FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    const bool many = field.is_repeated();
    const int index = many ? i : -1;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto value = many ? r->GetRepeatedInt32(message, &field, i) : r->GetInt32(message, &field);
        visit(value, fmt::format("{}", value), index);
        break;
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const auto value = many ? r->GetRepeatedInt64(message, &field, i) : r->GetInt64(message, &field);
        visit(static_cast<double>(value), fmt::format("{}", value), index);
        break;
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        const auto value = many ? r->GetRepeatedFloat(message, &field, i) : r->GetFloat(message, &field);
        visit(value, fmt::format("{}", value), index);
        break;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const auto value = many ? r->GetRepeatedDouble(message, &field, i) : r->GetDouble(message, &field);
        visit(value, exact(value), index);
        break;
      }
      default:
        return;  // unsigned numbers are seeds, which may be anything
    }
  }
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void check_field(const Document& document, const Message& message, const FieldDescriptor& field,
                 const std::string& path) {
  for_each_number(message, field, [&](double value, const std::string& text, int index) {
    const std::string place = index < 0 ? path : fmt::format("{}[{}]", path, index);
    if (const std::string fault = number_fault(field, value, text); !fault.empty())
      document.refuse(place, fault);
  });
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) return;
  const auto* reflection = message.GetReflection();
  const int count = field.is_repeated() ? reflection->FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    const std::string text = field.is_repeated() ? reflection->GetRepeatedString(message, &field, i)
                                                 : reflection->GetString(message, &field);
    if (!printable(text)) document.refuse(path, "expected text in UTF-8 without control characters");
    if (text.empty() && (field.options().GetExtension(schema::required) || field.is_repeated()))
      document.refuse(path, "must not be empty");
  }
}

std::vector<std::string> members(const OneofDescriptor& oneof) {
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(oneof.field(i)->name());
  return names;
}

void check_message(const Document& document, const Message& message, const std::string& path) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const std::string place = below(path, field->name());
    const bool set = field->is_repeated() ? reflection->FieldSize(message, field) > 0
                                          : reflection->HasField(message, field);
    if (!set) {
      if (field->options().GetExtension(schema::required))
        document.refuse(place, field->message_type()
                                   ? "is required"
                                   : fmt::format("is required: {}", expected_value(*field)));
    } else if (!field->message_type()) {
      check_field(document, message, *field, place);
    } else if (!field->is_repeated()) {
      check_message(document, reflection->GetMessage(message, field), place);
    } else {
      for (int k = 0; k < reflection->FieldSize(message, field); ++k)
        check_message(document, reflection->GetRepeatedMessage(message, field, k),
                      fmt::format("{}[{}]", place, k));
    }
  }
  for (int i = 0; i < descriptor->oneof_decl_count(); ++i) {
    const auto* oneof = descriptor->oneof_decl(i);
    if (oneof->options().GetExtension(schema::required_choice) && !reflection->HasOneof(message, oneof))
      document.refuse(path, fmt::format("needs one of {}", join(members(*oneof), ", ")));
  }
}

/// Paths of the fields called `name` anywhere in a run's config.
void find_fields(const std::string& name, const Descriptor& message, const std::string& path,
                 std::set<const Descriptor*>& seen, std::vector<std::string>& found) {
  if (!seen.insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto* field = message.field(i);
    if (field->name() == name) found.push_back(below(path, name));
    if (field->message_type())
      find_fields(name, *field->message_type(), below(path, field->name()), seen, found);
  }
}

}  // namespace

std::string number_fault(const FieldDescriptor& field, double value, const std::string& text) {
  if (!std::isfinite(value)) return fmt::format("expected a finite number, found {}", text);
  if (!within_limits(field, value)) return fmt::format("expected {}, found {}", expected_value(field), text);
  if (const std::string fault = float32_fault(field, value); !fault.empty())
    return fmt::format("{}, found {}", fault, text);
  return "";
}

std::string expected_value(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "fields in {}";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number" + limits(field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return "one of " + join(enumerators(field), ", ");
    case FieldDescriptor::CPPTYPE_UINT64:
      return fmt::format("a whole number from 0 to {}", std::numeric_limits<uint64_t>::max());
    default:
      return "a whole number" + limits(field);
  }
}

std::vector<std::string> enumerators(const FieldDescriptor& field) {
  std::vector<std::string> names;
  if (const auto* type = field.enum_type())
    for (int i = 0; i < type->value_count(); ++i) names.push_back(type->value(i)->name());
  return names;
}

std::string no_such_field(const std::string& name, const Descriptor& message, const std::string& path) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) {
    std::vector<std::string> elsewhere;
    std::set<const Descriptor*> seen;
    find_fields(name, *schema::RunConfig::descriptor(), "", seen, elsewhere);
    // Of several messages with such a field, the one in the same part of the config is meant.
    const auto shared = [&](const std::string& other) {
      const auto end = std::mismatch(path.begin(), path.end(), other.begin(), other.end()).first;
      return std::count(path.begin(), end, '.');  // whole names, not letters
    };
    const auto best = std::max_element(elsewhere.begin(), elsewhere.end(),
                                       [&](const auto& a, const auto& b) { return shared(a) < shared(b); });
    if (best != elsewhere.end())
      hint = fmt::format(" (did you mean '{}'?)", *best);
    else
      hint = names.empty() ? "; there are none here" : "; there are " + join(names, ", ");
  }
  return fmt::format("{}{}no field '{}'{}", path, path.empty() ? "" : ": ", name, hint);
}

void check_rules(const Document& document) { check_message(document, document.root(), ""); }

}  // namespace lockstep::config
