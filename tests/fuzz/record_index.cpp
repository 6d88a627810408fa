#include "data/records/record_index.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {
namespace {

/// With the checksum that a changed index would need, so that what is behind the checksum is reached, too;
/// nothing for what is no JSON object.
std::string with_its_checksum(std::string_view bytes) {
  using Json = nlohmann::ordered_json;
  Json json = Json::parse(bytes, nullptr, false);
  if (!json.is_object()) return {};
  const auto dump = [&] { return json.dump(1, ' ', false, Json::error_handler_t::replace); };
  json.erase("checksum");
  json["checksum"] = to_hex(hash64(dump()));
  return dump();
}

}  // namespace

std::vector<std::string> seeds() {
  data::RecordIndex images{.source = "images", .pack = 7, .classes = 2, .class_names = {"cat", "dog"}};
  images.parts[0] = {.identity = 1,
                     .shards = {{.file = "train-00000.records", .size_bytes = 640, .records = 3}}};
  data::RecordIndex samples{.content = data::RecordContent::samples, .source = "table", .classes = 2};
  samples.fields = {{.field = {"features", {Shape{4}, DType::float32}}},
                    {.field = {"label", {Shape{}, DType::int32}}, .vocabulary = 2, .largest = 1}};
  samples.parts[1] = {.identity = 2,
                      .shards = {{.file = "eval-00000.records", .size_bytes = 640, .records = 1}}};
  return {to_json(images), to_json(samples)};
}

void parse(std::string_view bytes) {
  try {
    data::index_from_json(std::string(bytes), "input");
  } catch (const Error&) {
    if (const std::string hashed = with_its_checksum(bytes); !hashed.empty())
      data::index_from_json(hashed, "input");
  }
}

}  // namespace lockstep::fuzz
