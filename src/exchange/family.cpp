#include "exchange/family.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::exchange {
namespace {

std::vector<std::string> names_of(Format format) {
  std::vector<std::string> names;
  for (const Family& family : all_families())
    if (family.format == format) names.emplace_back(family.name);
  return names;
}

}  // namespace

std::string_view name_of(Format format) { return format == Format::huggingface ? "huggingface" : "pytorch"; }

Format format_from_name(std::string_view name) {
  for (const Format format : {Format::huggingface, Format::pytorch})
    if (name == name_of(format)) return format;
  throw ConfigError(fmt::format("there is no format '{}'; there are huggingface and pytorch", name));
}

std::span<const Family> all_families() {
  static const std::array all{families::kGpt2, families::kLlama, families::kLayers};
  return all;
}

const Family& family_of(const ModelSpec& model, Format format) {
  for (const Family& family : all_families())
    if (family.format == format && family.resembles(model)) return family;
  throw ConfigError(fmt::format("the model is none that {} knows: lockstep writes and reads {}",
                                name_of(format), join(names_of(format), ", ")));
}

const Family& family_of(const nlohmann::json& config, const std::string& path) {
  const std::string type =
      config.is_object() && config.contains("model_type") && config["model_type"].is_string()
          ? config["model_type"].get<std::string>()
          : "";
  for (const Family& family : all_families())
    if (family.format == Format::huggingface && family.name == type) return family;
  const auto known = names_of(Format::huggingface);
  throw ConfigError(fmt::format("{}: expected a model_type that lockstep computes ({}), found '{}'{}", path,
                                join(known, ", "), type, did_you_mean(type, known)));
}

}  // namespace lockstep::exchange
