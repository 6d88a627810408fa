#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/checkpoint.h"
#include "exchange/family.h"
#include "lockstep/model.h"

namespace lockstep::exchange {

struct ExportOptions {
  Format format = Format::huggingface;
  DType dtype = DType::float32;            ///< of the tensors: float32, bfloat16 or float16
  int64_t shard_bytes = int64_t{5} << 30;  ///< a file of tensors ends before it would have more
  std::string directory;                   ///< made; must not have files
  checkpoint::Weights weights = checkpoint::Weights::parameters;  ///< that are exported
};

/// What was written.
struct ExportedModel {
  std::string family;  ///< see Family
  int64_t tensors = 0, size_bytes = 0;
  std::vector<std::string> files;  ///< names in the folder, sorted
  bool has_tokenizer = false;
};

/// Writes the parameters of a checkpoint of `model`, or their moving averages, as another program reads them:
/// model.safetensors, or, if it were larger than a shard may be, several files and
/// model.safetensors.index.json. For Hugging Face also config.json, generation_config.json and, if the
/// checkpoint has a tokenizer, its files. Holds one shard in memory. The folder appears when it is complete.
///
/// Throws ConfigError for a model that the format does not know, naming the layer; for a folder with files;
/// and for numbers that `dtype` cannot hold, naming the tensor. Throws IoError if writing fails.
ExportedModel export_model(const ModelSpec& model, const checkpoint::Checkpoint& checkpoint,
                           const ExportOptions& options, FileSystem& files = posix_file_system());

}  // namespace lockstep::exchange
