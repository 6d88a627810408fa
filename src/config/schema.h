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

// Internal to src/config, and the only header that uses protobuf. Messages of the schema are in
// lockstep::schema. A path such as "model.layer[2].linear.units" begins at the message that a document holds.

/// One step of a path; index is -1 if none is written.
struct PathStep {
  std::string name;
  int index = -1;
};
/// Throws ConfigError, which begins with `context`, if `path` is malformed.
std::vector<PathStep> parse_path(const std::string& path, const std::string& context);

/// A text read strictly into a message, the overrides applied to it, and the place where each field was
/// written.
class Document {
 public:
  /// Clears `root` and reads `text` into it. `name`: the text's name in messages, such as its file. Borrows
  /// `root`. Throws ConfigError "name:line:column: path: ...".
  Document(google::protobuf::Message& root, const std::string& text, std::string name);

  /// Applies "path=value". Messages on the way are made; members of a oneof replace each other. Values are
  /// written as in the text: numbers, true or false, enumerators, text with or without quotes, [lists],
  /// {messages}.
  void apply(const std::string& assignment);

  /// Records that `path` was written at `place`, such as "--layout dp=2".
  void note(const std::string& path, const std::string& place) { overrides_.push_back({path, place}); }

  /// Whether --set, or an option, wrote `path` or a message around it.
  bool is_overridden(const std::string& path) const;
  /// The place where `path`, or the innermost message around it, was written: "file:3:5" or "--set
  /// trainer.steps=0".
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

/// A field's accepted values, for messages: "a whole number from 1 to 65536", "FAST or REPRODUCIBLE".
std::string expected_value(const google::protobuf::FieldDescriptor& field);

/// Reads a value of `field`, written as in a file, into `message`, which is empty and of the field's kind.
/// Nothing: it is read. Otherwise what is wrong within the value, by field, or "": it is no such value at
/// all.
std::optional<std::string> fault_of_value(const std::string& value,
                                          const google::protobuf::FieldDescriptor& field,
                                          google::protobuf::Message& message);

/// A whole number that begins with a zero. Protobuf text reads it as octal, which nobody intends.
struct OctalNumber {
  int line, column;  ///< from 0
  std::string text;
};
/// The first one of a text or value; nothing if there is none.
std::optional<OctalNumber> find_octal(const std::string& text);
std::string leading_zero_text(std::string_view number);

/// A typical slip in a config: a decimal comma, or a typographic quotation mark.
struct TypingSlip {
  int line, column;     ///< from 0
  std::string message;  ///< what is wrong, and what to write
};
/// The first one, outside of comments and of texts in plain quotes.
std::optional<TypingSlip> find_typing_slip(std::string_view text);
/// The values of an enumeration; none for other fields.
std::vector<std::string> enumerators(const google::protobuf::FieldDescriptor& field);
/// "path: no field 'x' (did you mean 'y'?)"; if no name is near, with the fields of `message`.
std::string no_such_field(const std::string& name, const google::protobuf::Descriptor& message,
                          const std::string& path);

/// What is wrong with a value of a numeric field: "expected ..., found ..."; "" if nothing is.
std::string number_fault(const google::protobuf::FieldDescriptor& field, double value,
                         const std::string& text);
/// Checks the rules of the schema: required fields and choices, limits, finite numbers, printable text.
void check_rules(const Document& document);
/// Sets fields that `vary` of a block names, and that its layers do not state, to the first repetition's
/// values. `path`: the model's place in the document. REQUIRES: before check_rules, which checks them.
void fill_varied(schema::Model& model, const Document& document, const std::string& path);
/// A block's layers with the values of a repetition. `path`: the block's place in the document.
schema::Block block_of_repetition(const schema::Block& block, int64_t repetition, const Document& document,
                                  const std::string& path);
/// Sets every unset field that has a default; makes messages that are not choices.
void fill_defaults(google::protobuf::Message& message);
/// The same for the presets' lists, whose defaults a schema cannot state.
void fill_preset_defaults(schema::Model& model);
/// Every set field as (path, value), with (path of the oneof, chosen member) for every choice.
std::vector<std::pair<std::string, std::string>> flatten(const google::protobuf::Message& message);
/// As text proto that reads back as the same message.
std::string to_text(const google::protobuf::Message& message);

/// The layers of `model`, with presets and blocks expanded. `path`: its place in the document.
ModelSpec expand_model(const schema::Model& model, const Document& document, const std::string& path);
schema::Model plain_model(const ModelSpec& spec);

/// The layout of a config, or that of --layout, which replaces it. With --layout, fields that --set states
/// must agree with it, and settings that only other layouts use are dropped.
/// REQUIRES: rules are checked; defaults are not filled in.
layout::Layout read_layout(schema::Parallel& parallel, Document& document,
                           const std::optional<std::string>& option);
/// Makes `parallel` state `layout`: exactly the fields that have a meaning in it.
void write_layout(const layout::Layout& layout, schema::Parallel& parallel);

/// Whether samples are mixed, so that a label is of two classes.
bool mixes_labels(const schema::Data& data);
/// Fills in values of the data set that follow from the model, and refuses data that the model cannot read.
void fit_data_to_model(schema::Data& data, const ModelSpec& model, const Document& document);
/// The part of it that is about images: sizes of transforms, channels, files.
void fit_image_data(schema::Data& data, const ModelSpec& model, const Document& document);
/// Refuses transforms of kinds of data whose samples have no image. REQUIRES: the shape of synthetic data is
/// filled in.
void check_transformed(const schema::Data& data, const Document& document);
/// Refuses values that contradict each other or would be ignored. REQUIRES: defaults are filled in.
void check_combinations(const schema::RunConfig& config, const ModelSpec& model, const model::Graph& graph,
                        const layout::Layout& layout, const Document& document);

/// The part of it that is about the learning rate and its schedule.
void check_schedule(const schema::Optimizer& optimizer, int64_t global_batch, const Document& document);
/// optimizer.scale_with_batch; nothing if there is none.
std::optional<optim::BatchScaling> batch_scaling(const schema::Optimizer& optimizer);
/// The peak of the schedule for this batch.
double peak_rate(const schema::Optimizer& optimizer, int64_t global_batch);
/// Whether the rate rises from that for another batch: a warm-up is stated, and this batch is larger.
bool warms_up_to_batch(const schema::Optimizer& optimizer, int64_t global_batch);
/// The rates of parameters that groups match; with muon, of all that learn. Refuses groups and patterns
/// without a parameter.
optim::GroupRates resolve_groups(const schema::Optimizer& optimizer, const model::Graph& graph,
                                 const Document& document);
/// Refuses LAMB and adaptive clipping if groups, or a lack of weight decay, leave them no parameter.
void check_scaled(const optim::OptimizerOptions& optimizer, const optim::GroupRates& groups,
                  const model::Graph& graph, const Document& document);

/// The plain options of each module, but not the texts and hashes. REQUIRES: everything has been checked.
RunConfig convert(const schema::RunConfig& config, ModelSpec model, const layout::Layout& layout);
optim::ScheduleOptions convert_schedule(const schema::Optimizer& optimizer, int64_t global_batch);
/// Without a profile, which is a file of its own.
parallel::ParallelOptions convert_parallel(const schema::Parallel& parallel, const layout::Layout& layout);
// What convert() makes of parts of `Data`.
std::vector<data::TransformOptions> convert_transforms(
    const google::protobuf::RepeatedPtrField<schema::Transform>& transforms);
data::ImagesOptions convert_images(const schema::Images& images);
data::CifarOptions convert_cifar(const schema::Cifar& cifar);
/// Everything that decides the numbers of a run, by name.
std::vector<std::pair<std::string, std::string>> math_fields(const schema::RunConfig& config,
                                                             const ModelSpec& model);

}  // namespace lockstep::config
