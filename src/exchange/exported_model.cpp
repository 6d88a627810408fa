#include "exchange/exported_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/half.h"
#include "base/index.h"
#include "checkpoint/file_names.h"
#include "checkpoint/safetensors.h"
#include "exchange/layer_match.h"
#include "exchange/new_folder.h"
#include "exchange/tensor_store.h"
#include "exchange/tokenizer_files.h"
#include "lockstep/error.h"
#include "model/graph.h"
#include "tensor/convert.h"

namespace lockstep::exchange {
namespace {

namespace fs = std::filesystem;

constexpr float kLargestFloat16 = 65504, kLargestBfloat16 = 3.3895314e38f;

/// A tensor to be written.
struct Output {
  Piece piece;
  int parameter;  ///< -1: zeros
};

std::vector<Output> outputs_of(const Mapping& mapping) {
  std::vector<Output> outputs;
  for (int p = 0; p < static_cast<int>(mapping.pieces.size()); ++p)
    for (const Piece& piece : nth(mapping.pieces, p)) outputs.push_back({piece, p});
  for (const auto& implied : mapping.implied) {
    if (!implied.written) continue;
    Piece piece = implied.parameter < 0 ? as_here(implied.name, implied.shape)
                                        : nth(mapping.pieces, implied.parameter).at(0);
    piece.name = implied.name;
    outputs.push_back({std::move(piece), implied.parameter});
  }
  return outputs;
}

/// Consecutive tensors that share a file.
std::vector<std::vector<Output>> shards_of(const std::vector<Output>& outputs, const ExportOptions& options) {
  std::vector<std::vector<Output>> shards;
  int64_t size_bytes = 0;
  for (const auto& output : outputs) {
    const int64_t more = output.piece.shape.count() * size_of(options.dtype);
    if (shards.empty() || size_bytes + more > options.shard_bytes) {
      shards.emplace_back();
      size_bytes = 0;
    }
    shards.back().push_back(output);
    size_bytes += more;
  }
  return shards;
}

/// No number may turn into an infinity.
void require_representable(const std::string& name, const std::vector<float>& values, DType dtype) {
  if (dtype == DType::float32) return;
  const bool is_float16 = dtype == DType::float16;
  const float largest = is_float16 ? kLargestFloat16 : kLargestBfloat16;
  for (const float value : values)
    if (std::isfinite(value) && std::abs(value) > largest)
      throw ConfigError(fmt::format("tensor '{}' has {}, but {} holds numbers up to {}; use --dtype {}", name,
                                    value, name_of(dtype), largest, is_float16 ? "bfloat16" : "float32"));
}

/// Elements of a tensor of another program, in its order and type.
std::vector<std::byte> elements_of(const Output& output, const checkpoint::Checkpoint& checkpoint,
                                   const model::Graph& graph, const ExportOptions& options) {
  const Piece& piece = output.piece;
  const DType dtype = options.dtype;
  const auto count = static_cast<size_t>(piece.shape.count());
  std::vector<float> here(count, 0.0f);
  if (output.parameter >= 0) {
    const auto& parameter = graph.parameter(output.parameter);
    checkpoint.load_weights(options.weights,
                            std::vector<checkpoint::TensorDestination>{
                                {parameter.name, DType::float32, parameter.spec.shape, here.data(),
                                 tensor::Part::range(piece.first, piece.shape.count())}});
  }
  if (!piece.is_as_here()) {
    std::vector<float> there(count);
    to_there(piece, here.data(), there.data());
    here = std::move(there);
  }
  require_representable(piece.name, here, dtype);
  std::vector<std::byte> bytes(count * static_cast<size_t>(size_of(dtype)));
  tensor::convert(bytes.data(), dtype, here.data(), DType::float32, static_cast<int64_t>(count));
  return bytes;
}

/// Writes tensors, and returns their names and files.
nlohmann::json write_tensors(NewFolder& folder, const std::vector<std::vector<Output>>& shards,
                             const checkpoint::Checkpoint& checkpoint, const model::Graph& graph,
                             const ExportOptions& options, FileSystem& files, ExportedModel& exported) {
  nlohmann::json file_of = nlohmann::json::object();
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shards.size() == 1
                                 ? kTensorFile
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
    std::vector<std::vector<std::byte>> contents;
    std::vector<checkpoint::NamedTensor> tensors;
    for (const auto& output : shards[shard]) {
      contents.push_back(elements_of(output, checkpoint, graph, options));
      tensors.push_back({output.piece.name, options.dtype, output.piece.shape, contents.back().data()});
      file_of[output.piece.name] = name;
      exported.size_bytes += tensors.back().size_bytes();
      ++exported.tensors;
    }
    // "format" is what Python's loaders look for before they read a file.
    checkpoint::write_safetensors(files, folder.file(name), tensors, {{"format", "pt"}});
    exported.files.push_back(name);
  }
  return file_of;
}

/// What Hugging Face needs besides tensors, by name.
std::map<std::string, std::string> texts_of(const Family& family, const ModelSpec& model,
                                            const checkpoint::Checkpoint& checkpoint,
                                            const ExportOptions& options, ExportedModel& exported) {
  if (family.config_text == nullptr) return {};
  const auto tokenizer = tokenizer_of(checkpoint.manifest());
  std::map<std::string, std::string> texts;
  ConfigFacts facts{.dtype = std::string(name_of(options.dtype)), .end_of_text = {}};
  if (tokenizer) {
    facts.end_of_text = tokenizer->end_of_text();
    exported.has_tokenizer = true;
    texts = tokenizer_files(*tokenizer, context_of(model, family.name));
  }
  texts["config.json"] = family.config_text(model, facts);
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  if (facts.end_of_text)
    generation.update({{"bos_token_id", *facts.end_of_text}, {"eos_token_id", *facts.end_of_text}});
  texts["generation_config.json"] = generation.dump(2) + "\n";
  return texts;
}

}  // namespace

ExportedModel export_model(const ModelSpec& model, const checkpoint::Checkpoint& checkpoint,
                           const ExportOptions& options, FileSystem& files) {
  const Family& family = family_of(model, options.format);
  const Mapping mapping = family.mapping(model);
  const model::Graph graph = model::make_graph(model);
  ExportedModel exported{.family = std::string(family.name)};
  NewFolder folder(options.directory, files);
  const auto shards = shards_of(outputs_of(mapping), options);
  const auto file_of = write_tensors(folder, shards, checkpoint, graph, options, files, exported);
  auto texts = texts_of(family, model, checkpoint, options, exported);
  if (shards.size() > 1)
    texts[std::string(checkpoint::kIndexName)] =
        nlohmann::json{{"metadata", {{"total_size", exported.size_bytes}}}, {"weight_map", file_of}}.dump(1) +
        "\n";
  for (const auto& [name, text] : texts) {
    folder.write(name, text);
    exported.files.push_back(name);
  }
  folder.finish();
  std::ranges::sort(exported.files);
  return exported;
}

}  // namespace lockstep::exchange
