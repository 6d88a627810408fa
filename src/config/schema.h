#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/lockstep.pb.h"
#include "config/run_config.h"

namespace lockstep::config {

// The inside of src/config, and the only header in which protobuf shows. Messages of the schema live in
// lockstep::schema; a path is "model.layer[2].linear.units", from the message that a document holds.

/// One step of a path; index is -1 if none is written.
struct PathStep {
  std::string name;
  int index = -1;
};
/// Throws ConfigError beginning with `context` where `path` is malformed.
std::vector<PathStep> parse_path(const std::string& path, const std::string& context);

/// Text read strictly into a message, overrides applied to it, and the memory of where each field was
/// written.
class Document {
 public:
  /// Clears `root` and reads `text` into it. `name` is what messages call the text: its file. Borrows `root`.
  /// Throws ConfigError "name:line:column: path: ...".
  Document(google::protobuf::Message& root, const std::string& text, std::string name);

  /// Applies "path=value". Messages on the way are made; members of a oneof replace each other. Values are
  /// written as in the text: numbers, true or false, enumerators, text with or without quotes, [lists],
  /// {messages}.
  void apply(const std::string& assignment);

  /// From now on `path` was written at `place`, such as "--layout dp=2".
  void note(const std::string& path, const std::string& place) { overrides_.push_back({path, place}); }

  /// Whether --set, or an option, wrote `path` or a message around it.
  bool is_overridden(const std::string& path) const;
  /// Where `path`, or what is nearest around it, was written: "file:3:5" or "--set trainer.steps=0".
  std::string where(const std::string& path) const;
  /// Throws ConfigError "where: path: message".
  [[noreturn]] void refuse(const std::string& path, const std::string& message) const;

  const google::protobuf::Message& root() const { return root_; }

 private:
  struct Override {
    std::string path, place;
  };
  google::protobuf::Message& root_;
  std::string name_;
  google::protobuf::TextFormat::ParseInfoTree locations_;
  std::vector<Override> overrides_;
};

/// What a field takes, for people: "a whole number from 1 to 65536", "FAST or REPRODUCIBLE".
std::string expected_value(const google::protobuf::FieldDescriptor& field);

/// A whole number that begins with a zero, so that protobuf text takes it as octal, which nobody means.
struct OctalNumber {
  int line, column;  ///< from 0
  std::string text;
};
/// The first one of a text or value; nothing if there is none.
std::optional<OctalNumber> find_octal(const std::string& text);
std::string leading_zero_text(std::string_view number);

/// What people's fingers and editors make of a config: decimal commas, typographic quotation marks.
struct TypingSlip {
  int line, column;     ///< from 0
  std::string message;  ///< what it is, and what to write
};
/// The first one, outside of comments and of texts in plain quotes.
std::optional<TypingSlip> find_typing_slip(std::string_view text);
/// The values of an enumeration; none for other fields.
std::vector<std::string> enumerators(const google::protobuf::FieldDescriptor& field);
/// "path: no field 'x' (did you mean 'y'?)", with the fields there are in `message` where nothing is near.
std::string no_such_field(const std::string& name, const google::protobuf::Descriptor& message,
                          const std::string& path);

/// Checks what the schema itself demands: required fields and choices, limits, finite numbers, printable
/// text.
void check_rules(const Document& document);
/// Gives every field that has a default and is not set that default; makes messages that are not choices.
void fill_defaults(google::protobuf::Message& message);
/// Likewise for the presets' lists, whose defaults a schema cannot state.
void fill_preset_defaults(schema::Model& model);
/// Every set field as (path, value), with (path of the oneof, chosen member) for every choice.
std::vector<std::pair<std::string, std::string>> flatten(const google::protobuf::Message& message);
/// As text proto that reads back as the same message.
std::string to_text(const google::protobuf::Message& message);

/// The layers that `model` stands for, presets and blocks expanded. `path` is where it lies in the document.
ModelSpec expand_model(const schema::Model& model, const Document& document, const std::string& path);
schema::Model plain_model(const ModelSpec& spec);

/// The layout that a config states, or that of the option --layout, which replaces it: then fields that --set
/// states must say the same, and what else the config has for a layout of another kind is left out. Older
/// names of fields are taken out. REQUIRES: rules are checked; defaults are not filled in.
layout::Layout read_layout(schema::Parallel& parallel, Document& document,
                           const std::optional<std::string>& option);
/// Makes `parallel` state `layout`: every field that has a meaning in it, and none other.
void write_layout(const layout::Layout& layout, schema::Parallel& parallel);

/// Fills in what a data set takes from the model that reads it, and refuses data that the model cannot read.
void fit_data_to_model(schema::Data& data, const ModelSpec& model, const Document& document);
/// Refuses values that contradict each other or would be ignored. REQUIRES: defaults are filled in.
void check_combinations(const schema::RunConfig& config, const model::Graph& graph,
                        const layout::Layout& layout, const Document& document);

/// The plain options of each module, but not the texts and hashes. REQUIRES: everything has been checked.
RunConfig convert(const schema::RunConfig& config, ModelSpec model, const layout::Layout& layout);
/// What decides the numbers of a run, by name.
std::vector<std::pair<std::string, std::string>> math_fields(const schema::RunConfig& config,
                                                             const ModelSpec& model);

}  // namespace lockstep::config
