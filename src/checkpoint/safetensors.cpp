#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/strict_json.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMostHeaderBytes = 100'000'000;

struct TypeRow {
  std::string_view name;
  int64_t size_bytes;
  std::optional<DType> dtype;
};
constexpr std::array<TypeRow, 15> kTypes{{{"F32", 4, DType::float32},
                                          {"BF16", 2, DType::bfloat16},
                                          {"F16", 2, DType::float16},
                                          {"F64", 8, DType::float64},
                                          {"I32", 4, DType::int32},
                                          {"U8", 1, DType::uint8},
                                          {"BOOL", 1, {}},
                                          {"I8", 1, {}},
                                          {"I16", 2, {}},
                                          {"U16", 2, {}},
                                          {"U32", 4, {}},
                                          {"I64", 8, {}},
                                          {"U64", 8, {}},
                                          {"F8_E4M3", 1, {}},
                                          {"F8_E5M2", 1, {}}}};

const TypeRow* find_type(std::string_view name) {
  const auto row =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& type) { return type.name == name; });
  return row == kTypes.end() ? nullptr : &*row;
}

void read_at(int descriptor, const std::string& path, int64_t offset, void* destination, int64_t size_bytes) {
  auto* bytes = static_cast<std::byte*>(destination);
  while (size_bytes > 0) {
    const ssize_t got =
        pread(descriptor, bytes, static_cast<size_t>(std::min<int64_t>(size_bytes, 1 << 30)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    if (got == 0)
      throw CheckpointError(
          fmt::format("{}: expected {} more bytes at {}, found the end: the file shrank while it was "
                      "read",
                      path, size_bytes, offset));
    bytes += got;
    offset += got;
    size_bytes -= got;
  }
}

/// JSON as a message quotes it: damage may be long.
std::string quote(const nlohmann::json& json) {
  constexpr size_t kMost = 100;
  const std::string text = json.dump(-1, ' ', true);
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

/// A list of integers from 0 up to what 63 bits hold; `what` names it in the message.
std::vector<int64_t> unsigned_list(const nlohmann::json& list, const std::string& what) {
  std::vector<int64_t> numbers;
  const auto fits = [](const nlohmann::json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), fits))
    throw CheckpointError(
        fmt::format("{}: expected a list of integers from 0 on, found {}", what, quote(list)));
  for (const auto& number : list) numbers.push_back(number.get<int64_t>());
  return numbers;
}

SafetensorsFile::Entry parse_entry(const std::string& name, const nlohmann::json& value,
                                   const std::string& what) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string())
    throw CheckpointError(
        fmt::format("{}: expected dtype, shape and data_offsets, found {}", what, quote(value)));
  SafetensorsFile::Entry entry;
  entry.name = name;
  entry.type = value["dtype"].get<std::string>();
  const TypeRow* type = find_type(entry.type);
  if (!type) throw CheckpointError(fmt::format("{}: expected a known dtype, found '{}'", what, entry.type));
  entry.dtype = type->dtype;
  entry.shape = Shape(unsigned_list(value["shape"], what));
  const auto offsets = unsigned_list(value["data_offsets"], what);
  if (offsets.size() != 2)
    throw CheckpointError(fmt::format("{}: expected two data_offsets, found {}", what, offsets.size()));
  entry.begin = offsets[0];
  entry.end = offsets[1];
  int64_t size_bytes = type->size_bytes;
  for (const int64_t dim : entry.shape.dims())
    if (__builtin_mul_overflow(size_bytes, dim, &size_bytes))
      throw CheckpointError(fmt::format("{}: expected a size that fits 63 bits, found shape {}", what,
                                        entry.shape.to_string()));
  if (entry.begin > entry.end || entry.end - entry.begin != size_bytes)
    throw CheckpointError(fmt::format("{}: expected {} bytes for {} {}, found data_offsets [{}, {}]", what,
                                      size_bytes, entry.type, entry.shape.to_string(), entry.begin,
                                      entry.end));
  return entry;
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const auto& row : kTypes)
    if (row.dtype == dtype) return row.name;
  throw InternalError(fmt::format("no safetensors type for {}", name_of(dtype)));
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  const TypeRow* row = find_type(name);
  return row ? row->dtype : std::nullopt;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (descriptor_ < 0 || fstat(descriptor_, &info) != 0)
    throw IoError(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  try {
    const int64_t file_bytes = info.st_size;
    uint64_t length = 0;
    if (file_bytes < 8)
      throw CheckpointError(
          fmt::format("{}: expected a safetensors file of at least 8 bytes, found {}", path, file_bytes));
    read_at(descriptor_, path_, 0, &length, 8);
    if (length > static_cast<uint64_t>(std::min(kMostHeaderBytes, file_bytes - 8)))
      throw CheckpointError(fmt::format("{}: expected a header of at most {} bytes, found a length of {}",
                                        path, std::min(kMostHeaderBytes, file_bytes - 8), length));
    const auto header_bytes = static_cast<int64_t>(length);
    std::string header(length, '\0');
    read_at(descriptor_, path_, 8, header.data(), header_bytes);
    data_offset_ = 8 + header_bytes;
    parse_header(header, file_bytes - data_offset_);
  } catch (...) {
    close(descriptor_);  // the destructor does not run for an object that was never made
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_offset_(other.data_offset_),
      entries_(std::move(other.entries_)),
      by_name_(std::move(other.by_name_)),
      metadata_(std::move(other.metadata_)) {}

void SafetensorsFile::parse_header(const std::string& header, int64_t data_bytes) {
  const auto last = header.find_last_not_of(' ');
  if (header.empty() || header.front() != '{' || header[last] != '}')
    throw CheckpointError(fmt::format(
        "{}: expected a header from '{{' to '}}', padded with spaces, found something else", path_));
  const nlohmann::json json = parse_strict_json(header, path_ + ": header");
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      const auto is_string = [](const nlohmann::json& text) { return text.is_string(); };
      if (!value.is_object() || !std::all_of(value.begin(), value.end(), is_string))
        throw CheckpointError(
            fmt::format("{}: expected __metadata__ of strings, found {}", path_, quote(value)));
      metadata_ = value.get<std::map<std::string, std::string>>();
      continue;
    }
    entries_.push_back(parse_entry(name, value, fmt::format("{}: tensor '{}'", path_, name)));
  }
  check_coverage(data_bytes);
}

void SafetensorsFile::check_coverage(int64_t data_bytes) {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t covered = 0;
  for (const auto& entry : entries_) {
    if (entry.begin != covered)
      throw CheckpointError(fmt::format(
          "{}: tensor '{}': expected its bytes to begin at {}, the end of the tensor before, found {} ({})",
          path_, entry.name, covered, entry.begin, entry.begin < covered ? "an overlap" : "a gap"));
    covered = entry.end;
    by_name_[entry.name] = static_cast<size_t>(&entry - entries_.data());
  }
  if (covered != data_bytes)
    throw CheckpointError(
        fmt::format("{}: expected {} bytes of data after the header, found {}: the file is {}", path_,
                    covered, data_bytes, data_bytes < covered ? "truncated" : "too long"));
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsFile::read(const Entry& entry, void* destination) const {
  read_slice(entry, 0, entry.shape.count(), destination);
}

void SafetensorsFile::read_slice(const Entry& entry, int64_t first, int64_t count, void* destination) const {
  if (!entry.dtype)
    throw CheckpointError(
        fmt::format("{}: tensor '{}': expected an element type that lockstep computes with, found {}", path_,
                    entry.name, entry.type));
  if (first < 0 || count < 0 || first > entry.shape.count() || count > entry.shape.count() - first)
    throw CheckpointError(
        fmt::format("{}: tensor '{}': expected a range within {} elements, found {} from {} on", path_,
                    entry.name, entry.shape.count(), count, first));
  const int64_t element = size_of(*entry.dtype);
  read_at(descriptor_, path_, data_offset_ + entry.begin + first * element, destination, count * element);
}

}  // namespace lockstep::checkpoint
