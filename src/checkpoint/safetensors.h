#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_digest.h"
#include "base/file_system.h"
#include "checkpoint/named_tensor.h"

namespace lockstep::checkpoint {

// The safetensors format: a 64-bit little-endian header length, a JSON header, then the tensors' bytes
// without gaps:
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {"key":
// "value"}}.

struct WrittenFile {
  int64_t size_bytes = 0;
  FileChecksums checksums;
};

/// The entry of a tensor in a file: the whole tensor; a range of its elements, as "name[first:end]"; or a
/// rectangle of its matrix, as "name[first row:end,first column:end]", of shape [rows, columns].
TensorRecord entry_of(const TensorRecord& record);

/// Writes a file and syncs it. Tensors are ordered by descending size of element, then by name, so that each
/// is aligned and equal contents give equal files. Throws ConfigError for duplicate names, IoError if writing
/// fails.
WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// "F32", ... and back; nothing for types that DType does not have.
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// An open file whose header has been checked completely: lengths, JSON, UTF-8, unique names, types, shapes
/// without overflow, sizes that fit their spans, spans that cover the data without gap, overlap or rest.
/// Anything else is refused with CheckpointError naming the file and the tensor. Thread-safety: reading is
/// safe from several threads at once.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string type;            ///< as in the file
    std::optional<DType> dtype;  ///< none for types that lockstep does not compute with; those cannot be read
    Shape shape;
    int64_t begin = 0, end = 0;  ///< bytes within the data
  };

  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }  ///< in the order of their bytes
  const Entry* find(std::string_view name) const;                 ///< null if there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Reads a whole tensor. REQUIRES: `entry` is one of entries().
  void read(const Entry& entry, void* destination) const;
  /// Reads elements [first, first + count), counted over the flattened tensor; throws CheckpointError outside
  /// of it.
  void read_slice(const Entry& entry, int64_t first, int64_t count, void* destination) const;

 private:
  void parse_header(const std::string& header, int64_t data_bytes);
  void check_coverage(int64_t data_bytes);

  std::string path_;
  int descriptor_ = -1;
  int64_t data_offset_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lockstep::checkpoint
