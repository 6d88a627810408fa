#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "base/hash.h"
#include "checkpoint/strict_json.h"
#include "lockstep/error.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "lockstep checkpoint";
constexpr size_t kMostBytes = 256 << 20;

struct KindRow {
  FileKind kind;
  std::string_view name;
};
constexpr std::array<KindRow, 4> kKinds{{{FileKind::model, "model"},
                                         {FileKind::optimizer, "optimizer"},
                                         {FileKind::index, "index"},
                                         {FileKind::encoding, "encoding"}}};

// 64-bit hashes are hexadecimal strings: many readers of JSON keep only 53 bits of a number.
std::string hex32(uint32_t value) { return fmt::format("{:08x}", value); }
uint64_t from_hex(const Json& json, size_t digits) {
  const auto& text = json.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != digits || status != std::errc{} || end != text.data() + text.size())
    throw CheckpointError(fmt::format("expected {} hexadecimal digits, found '{}'", digits, text));
  return value;
}

// Characters need not be UTF-8, which JSON's text is.
std::string bytes_from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(from_hex(Json(hex.substr(i, 2)), 2)));
  return bytes;
}

int64_t count_from(const Json& json) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw CheckpointError("expected an integer from 0 on, found " + json.dump(-1, ' ', true).substr(0, 100));
  return json.get<int64_t>();
}

std::string plain_name_from(const Json& json) {
  const auto& name = json.get_ref<const std::string&>();
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string("/\\\0", 3)) != std::string::npos)
    throw CheckpointError(fmt::format("expected a plain file name, found '{}'", name));
  return name;
}

/// A whole tensor has no word about its part; a range has two numbers, and a rectangle a text.
Json json_of(const TensorRecord& tensor) {
  Json json{{"name", tensor.name}, {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape.dims()}};
  if (tensor.is_whole()) return json;
  if (tensor.part.is_range()) {
    json["first"] = tensor.part.first();
    json["count"] = tensor.part.count();
  } else {
    json["part"] = tensor::to_text(tensor.part);
  }
  return json;
}

TensorRecord tensor_record_from(const Json& json) {
  std::vector<int64_t> dims;
  for (const auto& dim : json.at("shape")) dims.push_back(count_from(dim));
  TensorRecord tensor{json.at("name").get<std::string>(),
                      dtype_from_name(json.at("dtype").get_ref<const std::string&>()),
                      Shape(std::move(dims))};
  const bool has_range = json.contains("first") || json.contains("count");
  if (has_range && json.contains("part"))
    throw CheckpointError(
        fmt::format("'{}': expected 'first' and 'count', or 'part', found both", tensor.name));
  try {
    if (has_range)
      tensor.part = tensor::Part::range(count_from(json.at("first")), count_from(json.at("count")));
    else if (json.contains("part"))
      tensor.part = tensor::part_from_text(json.at("part").get_ref<const std::string&>());
  } catch (const Error& error) {
    throw CheckpointError(fmt::format("'{}': {}", tensor.name, error.what()));
  }
  if (!tensor.part.fits(tensor.shape))
    throw CheckpointError(fmt::format("expected a part within '{}', which has shape {}, found {}",
                                      tensor.name, tensor.shape.to_string(), describe(tensor.part)));
  return tensor;
}

Json json_of(const FileRecord& record) {
  Json tensors = Json::array();
  for (const auto& tensor : record.tensors) tensors.push_back(json_of(tensor));
  return {{"name", record.name},
          {"kind", name_of(record.kind)},
          {"size_bytes", record.size_bytes},
          {"crc32c", hex32(record.checksums.crc32c)},
          {"xxh3", to_hex(record.checksums.xxh3)},
          {"tensors", tensors}};
}

FileRecord record_from(const Json& json) {
  FileRecord record;
  record.name = plain_name_from(json.at("name"));
  const auto& kind = json.at("kind").get_ref<const std::string&>();
  bool known = false;
  for (const auto& row : kKinds)
    if (row.name == kind) {
      record.kind = row.kind;
      known = true;
    }
  if (!known)
    throw CheckpointError(fmt::format("{}: expected a known kind of file, found '{}'", record.name, kind));
  record.size_bytes = count_from(json.at("size_bytes"));
  record.checksums.crc32c = static_cast<uint32_t>(from_hex(json.at("crc32c"), 8));
  record.checksums.xxh3 = from_hex(json.at("xxh3"), 16);
  for (const auto& tensor : json.at("tensors")) record.tensors.push_back(tensor_record_from(tensor));
  return record;
}

/// Of everything but the hash itself. Canonical: keys sorted, no blanks.
std::string hash_of(const Json& json) {
  Json body = json;
  body.erase("manifest_hash");
  return to_hex(hash64(body.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

Manifest manifest_from(const Json& json) {
  if (json.at("format") != kFormat) throw CheckpointError(fmt::format("expected format '{}'", kFormat));
  const int64_t version = count_from(json.at("format_version"));
  if (version != Manifest::kFormatVersion)
    throw CheckpointError(fmt::format("expected format version {}, found {}: written by a newer lockstep",
                                      Manifest::kFormatVersion, version));
  Manifest manifest;
  manifest.run_id = json.at("run_id").get<std::string>();
  manifest.step = count_from(json.at("step"));
  manifest.data_position = count_from(json.at("data_position"));
  manifest.total_steps = count_from(json.at("total_steps"));
  manifest.total_epochs = json.at("total_epochs").get<double>();
  manifest.seed = from_hex(json.at("seed"), 16);
  manifest.math_hash = from_hex(json.at("math_hash"), 16);
  manifest.config_hash = from_hex(json.at("config_hash"), 16);
  for (const auto& field : json.at("math_fields"))
    manifest.math_fields.emplace_back(field.at(0).get<std::string>(), field.at(1).get<std::string>());
  manifest.dataset_identity = from_hex(json.at("dataset_identity"), 16);
  manifest.arithmetic_fingerprint = json.at("arithmetic_fingerprint").get<std::string>();
  manifest.params_hash = from_hex(json.at("params_hash"), 16);
  manifest.state_hash = from_hex(json.at("state_hash"), 16);
  // Fields that earlier builds of this version did not write yet.
  if (json.contains("pending_evaluation"))
    manifest.pending_evaluation = json.at("pending_evaluation").get<bool>();
  if (json.contains("skipped_steps")) manifest.skipped_steps = count_from(json.at("skipped_steps"));
  if (json.contains("optimizer_updates"))
    manifest.optimizer_updates = count_from(json.at("optimizer_updates"));
  if (json.contains("learning_since"))
    for (const auto& [name, updates] : json.at("learning_since").items()) {
      const int64_t before = count_from(updates);
      if (before > manifest.optimizer_updates)
        throw CheckpointError(
            fmt::format("expected that '{}' learns since an update up to optimizer_updates ({}), found {}",
                        name, manifest.optimizer_updates, before));
      manifest.learning_since.emplace(name, before);
    }
  if (json.contains("loss_scale")) {
    manifest.loss_scale = json.at("loss_scale").get<double>();
    manifest.loss_scale_steps = count_from(json.at("loss_scale_steps"));
  }
  manifest.numerics_revision =
      json.contains("numerics_revision") ? count_from(json.at("numerics_revision")) : 0;
  if (json.contains("layout")) manifest.layout = json.at("layout").get<std::string>();
  if (json.contains("overflowed_steps")) manifest.overflowed_steps = count_from(json.at("overflowed_steps"));
  // They also wrote infinite losses, as null.
  if (json.contains("best_step") && !json.at("best_eval_loss").is_null()) {
    manifest.best_step = count_from(json.at("best_step"));
    manifest.best_eval_loss = json.at("best_eval_loss").get<double>();
    manifest.keeps_best = json.at("keeps_best").get<bool>();
  }
  if (json.contains("evaluations_since_best"))
    manifest.evaluations_since_best = count_from(json.at("evaluations_since_best"));
  manifest.last_evaluated_step =
      json.contains("last_evaluated_step") ? count_from(json.at("last_evaluated_step")) : manifest.best_step;
  if (json.contains("evaluates_average"))
    manifest.evaluates_average = json.at("evaluates_average").get<bool>();
  if (json.contains("evaluation_data_identity"))
    manifest.evaluation_data_identity = from_hex(json.at("evaluation_data_identity"), 16);
  if (json.contains("weights_from")) {
    manifest.weights_from = json.at("weights_from").get<std::string>();
    manifest.weights_hash = from_hex(json.at("weights_hash"), 16);
  }
  if (json.contains("characters"))
    // Earlier builds knew no other tokens.
    manifest.encodings[std::string(tokenizer::kTokenizerFile)] =
        tokenizer::to_json(tokenizer::Tokenizer::of_characters(
            bytes_from_hex(json.at("characters").get_ref<const std::string&>())));
  for (const auto& file : json.at("files")) manifest.files.push_back(record_from(file));
  return manifest;
}

}  // namespace

std::string_view name_of(FileKind kind) {
  for (const auto& row : kKinds)
    if (row.kind == kind) return row.name;
  throw InternalError("a kind of checkpoint file is not in its table");
}

std::string to_text(const Manifest& manifest) {
  Json files = Json::array(), fields = Json::array();
  for (const auto& file : manifest.files) files.push_back(json_of(file));
  for (const auto& [name, value] : manifest.math_fields) fields.push_back({name, value});
  Json json{{"format", kFormat},
            {"format_version", Manifest::kFormatVersion},
            {"run_id", manifest.run_id},
            {"step", manifest.step},
            {"data_position", manifest.data_position},
            {"total_steps", manifest.total_steps},
            {"total_epochs", manifest.total_epochs},
            {"seed", to_hex(manifest.seed)},
            {"math_hash", to_hex(manifest.math_hash)},
            {"config_hash", to_hex(manifest.config_hash)},
            {"layout", manifest.layout},
            {"numerics_revision", manifest.numerics_revision},
            {"math_fields", fields},
            {"dataset_identity", to_hex(manifest.dataset_identity)},
            {"arithmetic_fingerprint", manifest.arithmetic_fingerprint},
            {"params_hash", to_hex(manifest.params_hash)},
            {"state_hash", to_hex(manifest.state_hash)},
            {"pending_evaluation", manifest.pending_evaluation},
            {"skipped_steps", manifest.skipped_steps},
            {"overflowed_steps", manifest.overflowed_steps},
            {"files", files}};
  if (manifest.optimizer_updates >= 0) json["optimizer_updates"] = manifest.optimizer_updates;
  if (!manifest.learning_since.empty()) json["learning_since"] = manifest.learning_since;
  if (manifest.loss_scale != 0) {
    json["loss_scale"] = manifest.loss_scale;
    json["loss_scale_steps"] = manifest.loss_scale_steps;
  }
  if (manifest.best_step >= 0) {
    json["best_step"] = manifest.best_step;
    json["best_eval_loss"] = manifest.best_eval_loss;
    json["keeps_best"] = manifest.keeps_best;
  }
  if (manifest.last_evaluated_step >= 0) {
    json["last_evaluated_step"] = manifest.last_evaluated_step;
    json["evaluations_since_best"] = manifest.evaluations_since_best;
  }
  if (manifest.evaluates_average) json["evaluates_average"] = true;
  if (manifest.evaluation_data_identity != 0)
    json["evaluation_data_identity"] = to_hex(manifest.evaluation_data_identity);
  if (!manifest.weights_from.empty()) {
    json["weights_from"] = manifest.weights_from;
    json["weights_hash"] = to_hex(manifest.weights_hash);
  }
  // Replacing bad UTF-8 before hashing: the hash is that of what a reader will see.
  json = Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  json["manifest_hash"] = hash_of(json);
  return json.dump(1) + "\n";
}

Manifest manifest_from_text(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes)
    throw CheckpointError(
        fmt::format("{}: expected a manifest of at most {} bytes, found {}", name, kMostBytes, text.size()));
  const Json json = parse_strict_json(text, name);
  try {
    const auto& saved = json.at("manifest_hash").get_ref<const std::string&>();
    if (const std::string actual = hash_of(json); saved != actual)
      throw CheckpointError(
          fmt::format("expected contents of hash {}, found {}: the manifest is damaged", saved, actual));
    return manifest_from(json);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(
        fmt::format("{}: expected a checkpoint's manifest, found something else ({})", name, error.what()));
  } catch (const Error& error) {
    throw CheckpointError(fmt::format("{}: {}", name, error.what()));
  }
}

std::string to_text(const FileRecord& record) { return json_of(record).dump(); }

FileRecord file_record_from_text(std::string_view text) {
  try {
    return record_from(parse_strict_json(text, "record of a shard"));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(
        fmt::format("record of a shard: expected its fields, found something else ({})", error.what()));
  } catch (const Error& error) {
    throw CheckpointError(fmt::format("record of a shard: {}", error.what()));
  }
}

namespace {

/// A layer's text without the options that say what its parameters begin at. Those of a checkpoint have
/// begun.
std::string without_first_values(const std::string& layer) {
  constexpr std::string_view kOptions[] = {"init_std:", "init_range:", "zero_weight:", "bias_init_std:"};
  std::istringstream words(layer);
  std::string kept, word;
  while (words >> word) {
    if (std::ranges::find(kOptions, word) != std::end(kOptions)) {
      words >> word;  // its value
      continue;
    }
    kept += (kept.empty() ? "" : " ") + word;
  }
  return kept;
}

bool is_same_math(const std::string& name, const std::string& a, const std::string& b) {
  return a == b || (name.starts_with("model.layer.") && without_first_values(a) == without_first_values(b));
}

}  // namespace

std::vector<std::string> compare_math(const MathFields& saved, const MathFields& current) {
  const std::map<std::string, std::string> before(saved.begin(), saved.end()),
      now(current.begin(), current.end());
  std::set<std::string> names;
  for (const auto* fields : {&before, &now})
    for (const auto& [name, value] : *fields) names.insert(name);
  const auto text_of = [](const std::map<std::string, std::string>& fields, const std::string& name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string("not set") : found->second;
  };
  std::vector<std::string> differences;
  for (const auto& name : names)
    if (const auto a = text_of(before, name), b = text_of(now, name); !is_same_math(name, a, b))
      differences.push_back(fmt::format("{}: {} in the checkpoint, {} now", name, a, b));
  return differences;
}

}  // namespace lockstep::checkpoint
