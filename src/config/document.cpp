#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
namespace io = google::protobuf::io;

constexpr size_t kMaximumSize = 1 << 20;
constexpr int kMaximumDepth = 64;

struct SyntaxError {
  int line, column;  // from 0; line -1: nowhere in particular
  std::string message;
};

class FirstError : public io::ErrorCollector {
 public:
  void AddError(int line, io::ColumnNumber column, const std::string& message) override {
    if (!error) error = SyntaxError{line, column, message};
  }
  std::optional<SyntaxError> error;
};

/// The field that the parser was reading when it stopped.
struct Place {
  std::string path;
  const Descriptor* message = nullptr;     // in which it stands
  const FieldDescriptor* field = nullptr;  // null where it is not known to the schema
  std::string name;                        // as written
  int line = 0, column = 0;                // of its name
  int last_line = 0, last_column = 0;      // of the last word before the parser stopped
};

/// Reads tokens up to the given position, following braces. The parser's own messages name types, not places.
Place place_at(const Descriptor& root, const std::string& text, int line, int column) {
  io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  FirstError ignored;
  io::Tokenizer tokenizer(&stream, &ignored);
  tokenizer.set_allow_f_after_float(true);
  tokenizer.set_comment_style(io::Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_require_space_after_number(false);
  tokenizer.set_allow_multiline_strings(true);

  std::vector<Place> around;
  Place place{.message = &root};
  bool in_value = false;
  int last_line = 0, last_column = 0;
  while (tokenizer.Next()) {
    const auto& token = tokenizer.current();
    if (token.line > line || (token.line == line && token.column >= column)) break;
    last_line = token.line;
    last_column = token.column;
    if (token.text == "{" || token.text == "<") {
      if (!place.field || !place.field->message_type()) break;
      around.push_back(place);
      place = {.path = place.path, .message = place.field->message_type()};
      in_value = false;
    } else if (token.text == "}" || token.text == ">") {
      if (around.empty()) break;
      place = around.back();
      around.pop_back();
      in_value = false;
    } else if (token.text == ":") {
      in_value = true;
    } else if (token.type == io::Tokenizer::TYPE_IDENTIFIER && !in_value) {
      const std::string parent = around.empty() ? "" : around.back().path + ".";
      place.name = token.text;
      place.path = parent + token.text;
      place.field = place.message->FindFieldByName(token.text);
      place.line = token.line;
      place.column = token.column;
    } else if (token.text != "[" && token.text != "," && token.text != "-") {
      in_value = false;
    }
  }
  place.last_line = last_line;
  place.last_column = last_column;
  return place;
}

std::string shortened(const std::string& text) {
  return text.size() <= 200 ? text : text.substr(0, 197) + "...";
}

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// What stands between `before` and the next quotation mark, shortened where it is absurdly long.
std::optional<std::string> quoted_after(const std::string& message, std::string_view before) {
  const auto begin = message.find(before);
  if (begin == std::string::npos) return std::nullopt;
  const auto end = message.find('"', begin + before.size());
  if (end == std::string::npos) return std::nullopt;
  return shortened(message.substr(begin + before.size(), end - begin - before.size()));
}

/// What is wrong with a text, in the words of the schema.
struct Explanation {
  int line, column;  // from 0; line -1: nowhere in particular
  std::string message;
  std::string path;  // of the field in question, if it is known
};

Explanation explain(const SyntaxError& error, const std::string& text, const Descriptor& root) {
  if (error.line < 0) return {-1, 0, shortened(error.message), ""};
  const Place place = place_at(root, text, error.line, error.column);
  if (const auto field = quoted_after(error.message, "has no field named \"")) {
    if (shortened(place.name) == *field)
      return {place.line, place.column, no_such_field(*field, *place.message, parent_of(place.path)),
              place.path};
    return {error.line, error.column, fmt::format("no field '{}'", *field), place.path};
  }
  if (place.field) {
    if (const auto found = quoted_after(error.message, "Unknown enumeration value of \""))
      return {place.last_line, place.last_column,
              fmt::format("{}: expected {}, found {}{}", place.path, expected_value(*place.field), *found,
                          did_you_mean(*found, enumerators(*place.field))),
              place.path};
    const std::string expected = fmt::format("{}: expected {} ({})", place.path, expected_value(*place.field),
                                             shortened(error.message));
    if (error.message.starts_with("Invalid value for boolean"))
      return {place.last_line, place.last_column, expected, place.path};
    for (const char* mismatch : {"Expected integer", "Expected double", "Expected string",
                                 "Expected identifier", "Integer out of range", "Invalid integer"})
      if (error.message.starts_with(mismatch)) return {error.line, error.column, expected, place.path};
  }
  return {
      error.line, error.column,
      fmt::format("{}{}{}", shortened(place.path), place.path.empty() ? "" : ": ", shortened(error.message)),
      place.path};
}

std::string with_place(const Explanation& fault, const std::string& name) {
  return fault.line < 0 ? fmt::format("{}: {}", name, fault.message)
                        : fmt::format("{}:{}:{}: {}", name, fault.line + 1, fault.column + 1, fault.message);
}

/// The first fault of a text that is read into an empty message; nothing: it is read.
std::optional<Explanation> read_text(google::protobuf::Message& root, const std::string& text,
                                     TextFormat::ParseInfoTree* locations) {
  FirstError errors;
  TextFormat::Parser parser;
  parser.SetRecursionLimit(kMaximumDepth);
  parser.RecordErrorsTo(&errors);
  if (locations != nullptr) parser.WriteLocationsTo(locations);
  if (parser.ParseFromString(text, &root)) return {};
  if (!errors.error) errors.error = SyntaxError{-1, 0, "not readable as protobuf text"};
  return explain(*errors.error, text, *root.GetDescriptor());
}

void read_strictly(google::protobuf::Message& root, const std::string& text, const std::string& name,
                   TextFormat::ParseInfoTree* locations) {
  if (text.size() > kMaximumSize)
    throw ConfigError(fmt::format("{}: is larger than {}, the most that a config may have", name,
                                  human_bytes(kMaximumSize)));
  if (text.starts_with("\xef\xbb\xbf"))
    throw ConfigError(fmt::format("{}: begins with a byte-order mark; save it as UTF-8 without one", name));
  const auto refuse = [&](const SyntaxError& error) {
    throw ConfigError(with_place(explain(error, text, *root.GetDescriptor()), name));
  };
  if (const auto slip = find_typing_slip(text)) refuse({slip->line, slip->column, slip->message});
  if (const auto octal = find_octal(text))
    refuse({octal->line, octal->column, leading_zero_text(octal->text)});
  if (const auto fault = read_text(root, text, locations)) throw ConfigError(with_place(*fault, name));
}

/// Reads "[12]".
bool read_index(const std::string& text, int& index) {
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') return false;
  const char* end = text.data() + text.size() - 1;
  const auto [stop, status] = std::from_chars(text.data() + 1, end, index);
  return status == std::errc{} && stop == end && index >= 0;
}

bool covers(const std::string& outer, const std::string& path) {
  return path.starts_with(outer) &&
         (path.size() == outer.size() || path[outer.size()] == '.' || path[outer.size()] == '[');
}

}  // namespace

std::optional<OctalNumber> find_octal(const std::string& text) {
  io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  FirstError ignored;
  io::Tokenizer tokenizer(&stream, &ignored);
  tokenizer.set_comment_style(io::Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_require_space_after_number(false);
  tokenizer.set_allow_multiline_strings(true);
  while (!ignored.error && tokenizer.Next()) {
    const auto& token = tokenizer.current();
    const bool has_zero =
        token.text.size() > 1 && token.text[0] == '0' && token.text[1] >= '0' && token.text[1] <= '9';
    if (token.type == io::Tokenizer::TYPE_INTEGER && has_zero)
      return OctalNumber{token.line, token.column, token.text};
  }
  return {};
}

std::string leading_zero_text(std::string_view number) {
  return fmt::format("{} begins with a zero, which would make it octal; remove the zero", number);
}

std::vector<PathStep> parse_path(const std::string& path, const std::string& context) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::vector<PathStep> steps;
  for (const auto& part : split(path, '.')) {
    PathStep step;
    size_t end = 0;
    while (end < part.size() && (is_letter(part[end]) || (end > 0 && is_digit(part[end])))) ++end;
    step.name = part.substr(0, end);
    const bool good = end > 0 && (end == part.size() || read_index(part.substr(end), step.index));
    if (!good)
      throw ConfigError(
          fmt::format("{}: '{}' is not a field; expected a path such as trainer.steps or model.layer[2].name",
                      context, part));
    steps.push_back(std::move(step));
  }
  return steps;
}

std::optional<std::string> fault_of_value(const std::string& value, const FieldDescriptor& field,
                                          Message& message) {
  const auto fault = read_text(message, field.name() + ": " + value, nullptr);
  if (!fault) return {};
  return fault->path.size() > field.name().size() ? fault->message : "";
}

Document::Document(google::protobuf::Message& root, const std::string& text, std::string name)
    : root_(root), name_(std::move(name)) {
  read_strictly(root_, text, name_, &locations_);
}

bool Document::is_overridden(const std::string& path) const {
  return std::any_of(overrides_.begin(), overrides_.end(),
                     [&](const auto& one) { return covers(one.path, path); });
}

std::string Document::where(const std::string& path) const {
  for (auto i = overrides_.rbegin(); i != overrides_.rend(); ++i)
    if (covers(i->path, path)) return i->place;
  std::string place = name_;
  const Descriptor* message = root_.GetDescriptor();
  const TextFormat::ParseInfoTree* tree = &locations_;
  for (const auto& step : parse_path(path, name_)) {
    const auto* field = message ? message->FindFieldByName(step.name) : nullptr;
    if (!field || !tree) break;
    const int index = field->is_repeated() ? std::max(step.index, 0) : -1;
    const auto location = tree->GetLocation(field, index);
    if (location.line < 0) break;
    place = fmt::format("{}:{}:{}", name_, location.line + 1, location.column + 1);
    message = field->message_type();
    if (message) tree = tree->GetTreeForNested(field, index);
  }
  return place;
}

void Document::refuse(const std::string& path, const std::string& message) const {
  throw ConfigError(fmt::format("{}: {}{}{}", where(path), path, path.empty() ? "" : ": ", message));
}

}  // namespace lockstep::config
