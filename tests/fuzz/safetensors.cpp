#include "checkpoint/safetensors.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

std::string file_with(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, '\1');
}

}  // namespace

std::vector<std::string> seeds() {
  return {file_with("{}", 0), file_with(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
          file_with(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                    R"("b[0:2]":{"dtype":"I64","shape":[1],"data_offsets":[2,10]}})",
                    10)};
}

void parse(std::string_view bytes) {
  const checkpoint::SafetensorsFile file(file_of(bytes));
  std::vector<std::byte> values;
  for (const auto& entry : file.entries()) {
    if (!entry.dtype) continue;
    values.resize(static_cast<size_t>(entry.end - entry.begin));
    file.read(entry, values.data());
  }
}

}  // namespace lockstep::fuzz
