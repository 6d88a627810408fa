#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>

#include <memory>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
namespace io = google::protobuf::io;

class Ignore : public io::ErrorCollector {
 public:
  void AddError(int, io::ColumnNumber, const std::string&) override {}
};

bool quoted(const std::string& value) {
  return value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
         value.back() == value.front();
}

/// Reads one value of `field`: into it, or after its elements where it is repeated.
bool read_value(const std::string& value, const FieldDescriptor& field, Message& message) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !quoted(value)) {
    if (field.is_repeated())
      message.GetReflection()->AddString(&message, &field, value);
    else
      message.GetReflection()->SetString(&message, &field, value);
    return true;
  }
  Ignore ignore;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&ignore);
  parser.SetRecursionLimit(64);
  return parser.ParseFieldValueFromString(value, &field, &message);
}

/// The last element of a repeated field takes the place of another.
void keep_last_at(int index, const FieldDescriptor& field, Message& message) {
  const auto* reflection = message.GetReflection();
  reflection->SwapElements(&message, &field, index, reflection->FieldSize(message, &field) - 1);
  reflection->RemoveLast(&message, &field);
}

/// Reads messages, and "[a, b]" as all the elements of a repeated field, as they would stand in a file.
/// `fault`: what is wrong within them.
bool read_as_in_file(const std::string& value, const FieldDescriptor& field, Message& message, int index,
                     std::string& fault) {
  std::unique_ptr<Message> read(message.New());
  if (const auto found = fault_of_value(value, field, *read)) {
    fault = *found;
    return false;
  }
  std::vector<const FieldDescriptor*> set;
  read->GetReflection()->ListFields(*read, &set);
  if (set.size() > 1 || (set.size() == 1 && set[0] != &field)) return false;  // "[1] other: 2"
  const auto* reflection = message.GetReflection();
  if (index < 0)
    reflection->ClearField(&message, &field);
  else if (reflection->FieldSize(*read, &field) != 1)
    return false;
  message.MergeFrom(*read);
  if (index >= 0) keep_last_at(index, field, message);
  return true;
}

bool read_element(const std::string& value, const FieldDescriptor& field, Message& message, int index) {
  if (!read_value(value, field, message)) return false;
  keep_last_at(index, field, message);
  return true;
}

}  // namespace

void Document::apply(const std::string& assignment) {
  const std::string context = "--set " + assignment;
  const auto equals = assignment.find('=');
  if (equals == std::string::npos)
    throw ConfigError(fmt::format("{}: expected path=value, such as trainer.steps=100", context));
  const std::string path(trim(std::string_view(assignment).substr(0, equals)));
  const std::string value = assignment.substr(equals + 1);
  const auto steps = parse_path(path, context);
  if (steps.empty())
    throw ConfigError(fmt::format("{}: expected path=value, such as trainer.steps=100", context));

  Message* message = &root_;
  std::string walked;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    const auto* field = message->GetDescriptor()->FindFieldByName(step.name);
    if (!field)
      throw ConfigError(
          fmt::format("{}: {}", context, no_such_field(step.name, *message->GetDescriptor(), walked)));
    walked += (walked.empty() ? "" : ".") + step.name;
    const auto* reflection = message->GetReflection();
    if (step.index >= 0 && !field->is_repeated())
      throw ConfigError(fmt::format("{}: {} is not a list; remove [{}]", context, walked, step.index));
    if (step.index >= 0) {
      const int size = reflection->FieldSize(*message, field);
      if (step.index >= size)
        throw ConfigError(fmt::format("{}: {} has {} element{}, so there is no [{}]{}", context, walked, size,
                                      size == 1 ? "" : "s", step.index, size ? "; they count from 0" : ""));
      walked += fmt::format("[{}]", step.index);
    }
    if (i + 1 < steps.size()) {
      if (!field->message_type())
        throw ConfigError(
            fmt::format("{}: {} takes {} and has no fields", context, walked, expected_value(*field)));
      if (field->is_repeated() && step.index < 0)
        throw ConfigError(
            fmt::format("{}: {} is a list; name one element, as in {}[0]", context, walked, walked));
      message = field->is_repeated() ? reflection->MutableRepeatedMessage(message, field, step.index)
                                     : reflection->MutableMessage(message, field);
      continue;
    }
    const bool is_text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (const auto slip = find_typing_slip(value); slip && (!is_text || slip->line + slip->column == 0))
      throw ConfigError(fmt::format("{}: {}: {}", context, walked, slip->message));
    if (const auto octal = find_octal(value); octal && !is_text)
      throw ConfigError(fmt::format("{}: {}: {}", context, walked, leading_zero_text(octal->text)));
    bool good;
    std::string fault;
    if (field->message_type() || (field->is_repeated() && step.index < 0)) {
      good = read_as_in_file(value, *field, *message, step.index, fault);
    } else if (field->is_repeated()) {
      good = read_element(value, *field, *message, step.index);
    } else {
      reflection->ClearField(message, field);
      good = read_value(value, *field, *message);
    }
    if (!fault.empty()) {
      const std::string around = walked.substr(0, walked.rfind('.') + 1);
      throw ConfigError(fmt::format("{}: {}{}", context, around, fault));
    }
    if (!good)
      throw ConfigError(fmt::format("{}: {}: expected {}{}, found '{}'{}", context, walked,
                                    field->is_repeated() && step.index < 0 ? "a list in [] of " : "",
                                    expected_value(*field), value, did_you_mean(value, enumerators(*field))));
  }
  overrides_.push_back({walked, context});
}

}  // namespace lockstep::config
