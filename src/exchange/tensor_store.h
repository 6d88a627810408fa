#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "lockstep/tensor.h"

namespace lockstep::exchange {

/// Named tensors of a trained model, wherever they lie. Thread-safety: const methods are safe from several
/// threads.
class TensorStore {
 public:
  struct Entry {
    std::string type;            ///< as its file says
    std::optional<DType> dtype;  ///< none for types that lockstep does not compute with
    Shape shape;
  };
  virtual ~TensorStore() = default;

  virtual const std::string& path() const = 0;
  virtual const std::map<std::string, Entry, std::less<>>& entries() const = 0;  ///< by name
  /// Elements [first, first + count) of a tensor, from float32, bfloat16 or float16, in whose float32 nothing
  /// is lost. REQUIRES: the tensor is there. Throws CheckpointError for other types and outside of the
  /// tensor.
  virtual void read(const std::string& name, int64_t first, int64_t count, float* to) const = 0;
  /// The text of tokenizer.json beside the tensors, if there is one.
  virtual std::optional<std::string> tokenizer_text() const = 0;
  /// What its files say about them: "conv2d_weight" of checkpoints.
  virtual const std::map<std::string, std::string>& metadata() const = 0;
};

/// Throws CheckpointError if something that is no file lies there, such as a pipe, which nobody may ever
/// write to. Nothing if nothing does.
void require_regular_file(const std::string& path);

/// The name of the only file of tensors in a folder.
inline constexpr const char* kTensorFile = "model.safetensors";

/// Opens a safetensors file; or a folder with model.safetensors, or with model.safetensors.index.json and the
/// files that it names. Throws CheckpointError, which names the file: one that is missing, truncated or
/// damaged, a tensor that is in another file than the index says, or in two.
std::unique_ptr<TensorStore> open_safetensors(const std::string& path);

/// The parameters and statistics of a checkpoint of lockstep, which is verified completely first.
std::unique_ptr<TensorStore> open_checkpoint(const std::string& path,
                                             const checkpoint::BeforeRead& before_read = {});

}  // namespace lockstep::exchange
