#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "exchange/tensor_store.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

std::string safetensors(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, '\1');
}

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A folder with two files of weights, in memory, which the last process removes.
struct Folder {
  std::filesystem::path path = "/dev/shm/lockstep-fuzz-" + std::to_string(::getpid());
  Folder() {
    std::filesystem::create_directory(path);
    write(path / "1.safetensors",
          safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
    write(path / "2.safetensors",
          safetensors(R"({"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})", 2));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::vector<std::string> seeds() {
  return {R"({"metadata":{"total_size":10},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})",
          R"({"weight_map":{"b":"2.safetensors"}})"};
}

void parse(std::string_view bytes) {
  static const Folder folder;
  write(folder.path / "model.safetensors.index.json", bytes);
  const auto store = exchange::open_safetensors(folder.path.string());
  for (const auto& [name, entry] : store->entries()) {
    std::vector<float> values(static_cast<size_t>(entry.shape.count()));
    store->read(name, 0, entry.shape.count(), values.data());
  }
}

}  // namespace lockstep::fuzz
