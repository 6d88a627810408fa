#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "exchange/mapping.h"
#include "lockstep/model.h"

namespace lockstep::exchange {

/// Whose names and layouts: those of Hugging Face's transformers, or those that a user of PyTorch writes.
enum class Format { huggingface, pytorch };
std::string_view name_of(Format format);
/// Throws ConfigError, which lists the formats.
Format format_from_name(std::string_view name);

/// What a config.json says that a model does not.
struct ConfigFacts {
  std::string dtype = "float32";       ///< of the tensors
  std::optional<int32_t> end_of_text;  ///< token that begins and ends texts
};

/// Models that another program knows under its own names: a file of families/ each. Functions throw
/// ConfigError, which names the layer, for a model that is none of them.
struct Family {
  std::string_view name;  ///< Hugging Face's model_type; for messages and reports
  Format format;
  /// Whether a model is meant to be one, by the kinds of its layers: whoever is not gets no mapping.
  bool (*resembles)(const ModelSpec& model);
  Mapping (*mapping)(const ModelSpec& model);
  /// The text of config.json. Null: the program has no such file.
  std::string (*config_text)(const ModelSpec& model, const ConfigFacts& facts);
  /// What differs between the model and the one that a config.json describes, one line each. Throws
  /// ConfigError for a config.json of an architecture that lockstep does not compute.
  std::vector<std::string> (*differences)(const ModelSpec& model, const nlohmann::json& config);
  /// `model {...}` of a lockstep config for a config.json; `context` replaces its own unless it is 0.
  std::string (*preset_text)(const nlohmann::json& config, int64_t context);
};

/// All of them. Of several that a model resembles, the first counts.
std::span<const Family> all_families();
/// The family of a model in a format. Throws ConfigError, which names what is known, if there is none.
const Family& family_of(const ModelSpec& model, Format format);
/// The family of a config.json. Throws ConfigError, which begins with `path`, for others.
const Family& family_of(const nlohmann::json& config, const std::string& path);

namespace families {
extern const Family kGpt2, kLlama, kLayers;
}

}  // namespace lockstep::exchange
