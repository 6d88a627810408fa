// How fast raw records are read, compared with memcpy of the same bytes in the same random order:
//
//     records_benchmark [FOLDER]
//
// Prints, for several sizes of a sample, the medians of nine rounds in which all take turns: reading records;
// memcpy out of the mapped shard, at places that are known, which is what pages of 4 KiB cost; and memcpy out
// of memory that was allocated, whose pages may be huge.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "data/records/record_index.h"
#include "data/records/record_samples.h"
#include "data/records/shard.h"
#include "data/records/shard_writer.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kBytes = int64_t{192} << 20;
constexpr int kRounds = 9;

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

/// One shard of `count` samples of `floats` floats.
RecordIndex write_records(const std::string& folder, int64_t count, int64_t floats) {
  std::vector<uint8_t> bytes(static_cast<size_t>(4 * floats));
  const std::string path = folder + "/" + shard_name(0, 0);
  std::filesystem::remove(path);
  ShardWriter writer(posix_file_system(), path);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(bytes.data(), &i, std::min(sizeof i, bytes.size()));
    writer.add({}, "", bytes);
  }
  RecordIndex index{.content = RecordContent::samples, .source = "benchmark", .classes = 0};
  index.fields = {{.field = {"features", {Shape{floats}, DType::float32}}}};
  const uint64_t hash = writer.finish({});
  index.parts[0].shards = {{.file = shard_name(0, 0),
                            .size_bytes = static_cast<int64_t>(std::filesystem::file_size(path)),
                            .records = count,
                            .hash = hash}};
  return index;
}

/// A shard's file in memory, and where its records lie.
struct MappedShard {
  explicit MappedShard(const std::string& path) : size(std::filesystem::file_size(path)) {
    const int descriptor = ::open(path.c_str(), O_RDONLY);
    void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    if (mapped == MAP_FAILED) throw IoError("cannot map " + path);
    data = static_cast<const std::byte*>(mapped);
    const Shard shard(path);
    for (int64_t i = 0; i < shard.count(); ++i) offsets.push_back(shard.entry(i).offset);
  }
  ~MappedShard() { ::munmap(const_cast<std::byte*>(data), size); }
  MappedShard(const MappedShard&) = delete;
  MappedShard& operator=(const MappedShard&) = delete;

  size_t size;
  const std::byte* data = nullptr;
  std::vector<uint64_t> offsets;
};

void measure(const std::string& folder, int64_t floats) {
  const int64_t count = kBytes / (4 * floats);
  const auto size = static_cast<size_t>(4 * floats);
  const RecordIndex index = write_records(folder, count, floats);
  const auto data = make_record_samples(std::make_shared<const RecordSet>(folder, index, 0), index, 0, "",
                                        DamagePolicy::fail);
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::ranges::shuffle(order, std::mt19937_64(1));
  // Records lie at multiples of 64 bytes; so does what memcpy copies.
  const size_t stride = (size + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  std::vector<std::byte> memory(static_cast<size_t>(count) * stride), to(64 * size);
  const auto seconds = [&](auto&& read) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < order.size(); ++i)
      read(order[i], order[std::min(i + 1, order.size() - 1)], to.data() + i % 64 * size);
    return milliseconds_between(begin, Clock::now()) / 1e3;
  };
  const auto by_record = [&](int64_t sample, int64_t next, std::byte* destination) {
    std::byte* const destinations[] = {destination};
    data->expect(next);  // as BatchReader does
    data->read(sample, destinations);
  };
  const auto by_memcpy = [&](int64_t sample, int64_t /*next*/, std::byte* destination) {
    std::memcpy(destination, memory.data() + static_cast<size_t>(sample) * stride, size);
  };
  const MappedShard mapped(folder + "/" + shard_name(0, 0));
  const auto by_mapping = [&](int64_t sample, int64_t /*next*/, std::byte* destination) {
    std::memcpy(destination, mapped.data + mapped.offsets[static_cast<size_t>(sample)], size);
  };
  const double first = seconds(by_record);  // pages are mapped, checksums compared
  seconds(by_memcpy);
  seconds(by_mapping);
  std::vector<double> records, mappings, copies;
  for (int round = 0; round < kRounds; ++round) {
    records.push_back(seconds(by_record));
    mappings.push_back(seconds(by_mapping));
    copies.push_back(seconds(by_memcpy));
  }
  const double bytes = static_cast<double>(count) * static_cast<double>(size);
  const auto rate = [&](const std::vector<double>& each) { return bytes / median(each) / 1e9; };
  fmt::print(
      "{:>8} bytes a sample: first {:5.2f} GB/s, records {:6.2f} GB/s, memcpy of the mapping {:6.2f} GB/s, "
      "of memory {:6.2f} "
      "GB/s; records are {:.2f} of the former, {:.2f} of the latter\n",
      size, bytes / first / 1e9, rate(records), rate(mappings), rate(copies), rate(records) / rate(mappings),
      rate(records) / rate(copies));
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/dev/shm/records_benchmark";
  std::filesystem::create_directories(folder);
  for (const int64_t floats : {28 * 28, 32 * 32 * 3, 224 * 224 * 3}) lockstep::data::measure(folder, floats);
  if (argc < 2) std::filesystem::remove_all(folder);
}
