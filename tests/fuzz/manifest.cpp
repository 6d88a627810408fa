#include "checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {
namespace {

/// With the hash that a changed manifest would need, so that what is behind the hash is reached, too; nothing
/// for what is no JSON object.
std::string with_its_hash(std::string_view bytes) {
  nlohmann::json json = nlohmann::json::parse(bytes, nullptr, false);
  if (!json.is_object()) return {};
  const auto dump = [&] { return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); };
  json.erase("manifest_hash");
  json["manifest_hash"] = to_hex(hash64(dump()));
  return dump();
}

}  // namespace

std::vector<std::string> seeds() {
  checkpoint::Manifest manifest{.run_id = "a1b2", .step = 3, .layout = "dp=2"};
  manifest.math_fields = {{"trainer.seed", "7"}};
  checkpoint::FileRecord file{.name = "model.safetensors", .size_bytes = 96};
  const Shape shape{2, 3};
  file.tensors.push_back({.name = "fc.weight", .dtype = DType::float32, .shape = shape});
  for (const auto& part : {tensor::Part::range(1, 4), tensor::Part::rectangle(shape, {0, 2}, {1, 2})})
    file.tensors.push_back({.name = "fc.weight.m", .dtype = DType::float32, .shape = shape, .part = part});
  manifest.files.push_back(file);
  return {to_text(manifest)};
}

void parse(std::string_view bytes) {
  try {
    checkpoint::manifest_from_text(bytes, "input");
  } catch (const Error&) {
    if (const std::string hashed = with_its_hash(bytes); !hashed.empty())
      checkpoint::manifest_from_text(hashed, "input");
  }
}

}  // namespace lockstep::fuzz
