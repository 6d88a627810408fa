#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "exchange/tensor_names.h"
#include "exchange/tensor_store.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

/// A safetensors file of some tensors of one element.
std::string file_with(std::initializer_list<const char*> names) {
  std::string header = "{";
  int place = 0;
  for (const char* name : names) {
    if (place > 0) header += ",";
    header += std::string("\"") + name + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(4 * place) + "," + std::to_string(4 * place + 4) + "]}";
    ++place;
  }
  header += "}";
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(4 * names.size(), '\1');
}

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A folder with two files of tensors, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = "/dev/shm/lockstep-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      std::perror("fuzz: cannot make a folder in /dev/shm");
      std::abort();
    }
    path_ = name;
    write(path_ / "model-00001-of-00002.safetensors", file_with({"transformer.wte.weight", "h.0.ln_1.bias"}));
    write(path_ / "model-00002-of-00002.safetensors", file_with({"module.h.1.ln_1.bias"}));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

/// An index of weights; then, after an empty line, names of tensors to look for.
std::vector<std::string> seeds() {
  const std::string index =
      R"({"metadata":{"total_size":12},"weight_map":{"transformer.wte.weight":"model-00001-of-00002.safetensors",)"
      R"("h.0.ln_1.bias":"model-00001-of-00002.safetensors","module.h.1.ln_1.bias":"model-00002-of-00002.safetensors"}})";
  return {index, index + "\n\nwte.weight\nmodel.h.0.ln_1.bias\nh.1.ln_1.bias"};
}

void parse(std::string_view bytes) {
  static const Folder folder;
  const size_t end = bytes.find("\n\n");
  write(folder.path() / "model.safetensors.index.json", bytes.substr(0, end));
  const auto store = exchange::open_safetensors(folder.path().string());
  std::vector<std::string> there, expected;
  for (const auto& [name, entry] : store->entries()) {
    there.push_back(name);
    float value = 0;
    if (entry.shape.count() > 0) store->read(name, 0, 1, &value);
  }
  std::string_view names = end == std::string_view::npos ? "" : bytes.substr(end + 2);
  while (!names.empty()) {
    const size_t line = names.find('\n');
    expected.emplace_back(names.substr(0, line));
    names.remove_prefix(line == std::string_view::npos ? names.size() : line + 1);
  }
  exchange::match_names(expected, there);
}

}  // namespace lockstep::fuzz
