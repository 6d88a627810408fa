#include "data/records/record_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_number.h"
#include "base/text.h"
#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep records";
constexpr int kVersion = 1;
constexpr const char* kContents[] = {"files", "pixels", "samples"};
constexpr const char* kParts[] = {"train", "eval"};

std::string dump(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace); }

Json part_json(const PackedPart& part) {
  Json shards = Json::array();
  for (const auto& shard : part.shards)
    shards.push_back({{"file", shard.file},
                      {"bytes", shard.size_bytes},
                      {"records", shard.records},
                      {"xxh3", to_hex(shard.hash)}});
  return {{"identity", to_hex(part.identity)},
          {"records", part.records()},
          {"left_out", part.left_out},
          {"shards", shards}};
}

uint64_t hex_of(const Json& json) {
  const auto text = json.get<std::string>();
  size_t used = 0;
  const uint64_t value = std::stoull(text, &used, 16);
  if (used != 16 || text.size() != 16) throw std::invalid_argument("expected 16 hexadecimal digits");
  return value;
}

/// A name of a file in the index's own folder.
std::string own_name(const Json& json) {
  auto name = json.get<std::string>();
  if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
    throw std::invalid_argument(fmt::format("expected the name of a file, found '{}'", one_line(name)));
  return name;
}

int64_t count_of(const Json& json) {
  constexpr int64_t kMost = int64_t{1} << 48;  // sums of thousands do not overflow
  const auto number = whole_number<int64_t>(json);
  if (!number || *number < -1 || *number > kMost)
    throw std::invalid_argument(
        fmt::format("expected a number of something, found {}", one_line(dump(json))));
  return *number;
}

PackedPart part_of(const Json& json) {
  PackedPart part{
      .identity = hex_of(json.at("identity")), .left_out = count_of(json.at("left_out")), .shards = {}};
  for (const auto& shard : json.at("shards"))
    part.shards.push_back({.file = own_name(shard.at("file")),
                           .size_bytes = count_of(shard.at("bytes")),
                           .records = count_of(shard.at("records")),
                           .hash = hex_of(shard.at("xxh3"))});
  if (part.records() != count_of(json.at("records")) || part.records() < 1)
    throw std::invalid_argument("the shards do not have as many records as the part");
  return part;
}

Json field_json(const PackedField& packed) {
  const auto& spec = packed.field.spec;
  return {{"name", packed.field.name},
          {"type", name_of(spec.dtype)},
          {"shape", spec.shape.dims()},
          {"vocabulary", packed.vocabulary},
          {"largest", packed.largest}};
}

PackedField field_of(const Json& json) {
  const auto type = json.at("type").get<std::string>();
  if (type != name_of(DType::float32) && type != name_of(DType::int32))
    throw std::invalid_argument(fmt::format("a field has the type '{}'", one_line(type)));
  std::vector<int64_t> dims;
  for (const auto& size : json.at("shape")) dims.push_back(count_of(size));
  for (const int64_t size : dims)
    if (size < 1 || size > INT32_MAX) throw std::invalid_argument("a field has an impossible shape");
  const DType dtype = type == name_of(DType::int32) ? DType::int32 : DType::float32;
  return {.field = {json.at("name"), {Shape(dims), dtype}},
          .vocabulary = count_of(json.at("vocabulary")),
          .largest = count_of(json.at("largest"))};
}

RecordContent content_of(const std::string& name) {
  for (size_t i = 0; i < std::size(kContents); ++i)
    if (name == kContents[i]) return static_cast<RecordContent>(i);
  throw std::invalid_argument(fmt::format("the content is '{}'", one_line(name)));
}

RecordIndex index_of(const Json& json) {
  RecordIndex index{.content = content_of(json.at("content")),
                    .source = json.at("source"),
                    .pack = hex_of(json.at("pack")),
                    .classes = count_of(json.at("classes")),
                    .class_names = json.at("class_names"),
                    .channels = count_of(json.at("channels")),
                    .fields = {},
                    .encodings = json.at("encodings").get<Encodings>(),
                    .parts = {}};
  for (const auto& field : json.at("fields")) index.fields.push_back(field_of(field));
  if (index.content == RecordContent::samples && (index.fields.empty() || index.fields.size() > kMostFields))
    throw std::invalid_argument(fmt::format("expected from 1 to {} fields", kMostFields));
  if (index.classes < 0 || index.classes > INT32_MAX) throw std::invalid_argument("the classes are too many");
  if (index.channels != 1 && index.channels != 3) throw std::invalid_argument("expected 1 or 3 channels");
  for (size_t i = 0; i < std::size(kParts); ++i)
    if (json.contains(kParts[i])) index.parts[i] = part_of(json.at(kParts[i]));
  return index;
}

}  // namespace

const char* name_of(RecordContent content) { return kContents[static_cast<size_t>(content)]; }

int64_t PackedPart::records() const {
  int64_t count = 0;
  for (const auto& shard : shards) count += shard.records;
  return count;
}

std::string to_json(const RecordIndex& index) {
  Json fields = Json::array();
  for (const auto& field : index.fields) fields.push_back(field_json(field));
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"content", name_of(index.content)},
            {"source", index.source},
            {"pack", to_hex(index.pack)},
            {"classes", index.classes},
            {"class_names", index.class_names},
            {"channels", index.channels},
            {"fields", fields},
            {"encodings", index.encodings}};
  for (size_t i = 0; i < std::size(kParts); ++i)
    if (!index.parts[i].shards.empty()) json[kParts[i]] = part_json(index.parts[i]);
  json["checksum"] = to_hex(hash64(dump(json)));
  return dump(json) + "\n";
}

RecordIndex index_from_json(const std::string& text, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}: {}; pack the data again, or copy the folder again", name, what));
  };
  try {
    Json json = Json::parse(text);
    if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
      refuse("expected the index that `lockstep data pack` writes, found another file");
    if (json.at("version") != kVersion)
      refuse(fmt::format("expected version {}, found {}", kVersion, json["version"].dump()));
    const uint64_t stated = hex_of(json.at("checksum"));
    json.erase("checksum");
    if (hash64(dump(json)) != stated) refuse("the index has another checksum than it states: it is damaged");
    return index_of(json);
  } catch (const Json::exception& error) {
    refuse(fmt::format("expected an index, found damage ({})", error.what()));
  } catch (const std::logic_error& error) {  // numbers that are none, and what is refused above
    refuse(fmt::format("the index makes no sense: {}", error.what()));
  }
  throw InternalError("an index was neither read nor refused");
}

}  // namespace lockstep::data
