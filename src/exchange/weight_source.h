#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exchange/mapping.h"
#include "exchange/tensor_names.h"
#include "exchange/tensor_store.h"
#include "lockstep/model.h"
#include "model/graph.h"
#include "tensor/part.h"

namespace lockstep::exchange {

struct WeightSourceOptions {
  std::string path;         ///< a folder of Hugging Face, a safetensors file or folder; or a checkpoint
  bool checkpoint = false;  ///< `path` is a checkpoint of lockstep
  std::vector<std::string> new_layers;  ///< whose parameters come from nowhere
  std::vector<std::string> leave_out;   ///< tensors, or what begins their names, that are not read
  checkpoint::BeforeRead before_read;
};

/// Whether a folder has a config.json, as Hugging Face's have.
bool is_huggingface_folder(const std::string& path);
/// Whether a folder has weights under Hugging Face's names of files, with a config.json or without.
bool is_weight_folder(const std::string& path);

/// Trained weights of another model or program, whose tensors have been found to be the parameters of a
/// model. Thread-safety: const methods are safe from several threads.
class WeightSource {
 public:
  /// Opens and checks everything but the elements: every parameter is there, with its shape and a type that
  /// is read; nothing is left over; a config.json describes this model. Throws CheckpointError, which lists
  /// what is wrong, or ConfigError for a config.json of another model.
  WeightSource(const ModelSpec& model, const WeightSourceOptions& options);

  /// Writes a part of a parameter of the model's graph, packed. False, and nothing is written, for one of a
  /// new layer.
  bool read(int parameter, const tensor::Part& part, std::span<float> values) const;

  /// A hash of all tensors that are read, whole: ranks that read different parts of a model agree on it.
  /// Reads everything; `before_read` is called before each piece.
  uint64_t contents_hash(const checkpoint::BeforeRead& before_read) const;

  const std::string& path() const { return store_->path(); }
  /// "Hugging Face's gpt2", "a checkpoint of lockstep".
  const std::string& kind() const { return kind_; }
  /// What a user should know: a prefix of names that was passed over, positions that are not used.
  const std::vector<std::string>& notes() const { return notes_; }
  /// The text of the tokenizer that lies with the weights, if there is one.
  std::optional<std::string> tokenizer_text() const { return store_->tokenizer_text(); }
  int64_t tensor_count() const { return static_cast<int64_t>(tensors_.size()); }

 private:
  /// What is wrong with a mapping, and what it makes of the tensors.
  struct Fit;
  Fit fit(const Mapping& mapping) const;
  void note_names(Fit& fit, const NameMatch& match, const std::set<std::string>& unneeded) const;
  void check_tensor(Fit& fit, const std::string& name, const Shape& shape, bool may_be_longer) const;
  void take(Fit&& fit);
  std::vector<Mapping> candidates(const ModelSpec& model, const WeightSourceOptions& options) const;
  bool is_new(int parameter) const;
  void check_new_layers() const;
  void check_left_out() const;
  void check_implied() const;
  std::vector<float> read_piece(const Piece& piece) const;

  model::Graph graph_;
  std::vector<std::string> new_layers_, leave_out_;
  std::unique_ptr<TensorStore> store_;
  Mapping mapping_;
  std::map<std::string, std::string> tensors_;  // by the mapping's names: those of the store
  std::string kind_;
  std::vector<std::string> notes_;
};

}  // namespace lockstep::exchange
