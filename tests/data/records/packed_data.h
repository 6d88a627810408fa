#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/images/image_writer.h"
#include "data/records/record_packer.h"
#include "data/records/records.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {

namespace fs = std::filesystem;
using test::message_of;
using test::read_file;
using test::write_file;

/// Every sample's fields, three epochs of it, one behind the other.
inline std::vector<std::byte> all_bytes(const Dataset& data) {
  std::vector<std::byte> all;
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<std::vector<std::byte>> fields;
      std::vector<std::byte*> to;
      for (const auto& field : data.fields()) {
        fields.emplace_back(static_cast<size_t>(field.spec.shape.count() * size_of(field.spec.dtype)));
        to.push_back(fields.back().data());
      }
      data.read(SampleKey(i, epoch, 5), to);
      for (const auto& field : fields) all.insert(all.end(), field.begin(), field.end());
    }
  return all;
}

inline test::Bytes bytes_of(const Shard& shard, int64_t record) {
  test::Bytes bytes(shard.entry(record).size_bytes);
  const auto copy = [&](std::span<const uint8_t> read) noexcept { std::ranges::copy(read, bytes.begin()); };
  EXPECT_EQ(shard.read(record, copy), RecordState::whole);
  return bytes;
}

inline void expect_same(const Dataset& packed, const Dataset& original) {
  EXPECT_EQ(packed.fields(), original.fields());
  EXPECT_EQ(packed.classes(), original.classes());
  EXPECT_EQ(packed.class_names(), original.class_names());
  EXPECT_EQ(packed.encodings(), original.encodings());
  EXPECT_EQ(packed.identity(), original.identity());
  for (const auto& field : original.fields())
    EXPECT_EQ(packed.vocabulary(field.name), original.vocabulary(field.name));
  EXPECT_EQ(all_bytes(packed), all_bytes(original));
}

/// A wavy picture, so that no two images are alike.
inline std::vector<uint8_t> picture(int seed, int64_t height, int64_t width) {
  std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3));
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] =
        static_cast<uint8_t>(127 + 90 * std::sin(0.01 * static_cast<double>(i * (1 + seed % 7)) + seed));
  return pixels;
}

/// A folder of data, and what is packed of it.
class Records : public ::testing::Test {
 protected:
  Records() {
    options_.kind = DataKind::images;
    options_.directory = directory_.path();
    options_.images.train = "all";
    options_.images.eval_fraction = 0.25;
    options_.transforms = {RandomResizedCropOptions{.height = 8, .width = 8}, FlipOptions{}};
    options_.eval_transforms = {ResizeOptions{.height = 8, .width = 8}};
    pack_.directory = directory_ / "packed";
    pack_.shard_bytes = 1 << 16;
    pack_.threads = 3;
  }

  void add_images(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("all/{}/{}.", i % 3 == 0 ? "cat" : "dog", i);
      const int64_t height = 60 + i % 5, width = 90 - i % 4;
      add(name + (i % 2 ? "png" : "jpg"), i % 2 ? png_bytes({height, width, 3}, picture(i, height, width))
                                                : jpeg_bytes({height, width, 3}, picture(i, height, width)));
    }
  }
  void add(const std::string& name, const test::Bytes& bytes) {
    fs::create_directories(fs::path(directory_ / name).parent_path());
    write_file(directory_ / name, bytes);
  }
  DataOptions packed() const {
    DataOptions options = options_;
    options.kind = DataKind::records;
    options.records.folder = "packed";
    options.records.channels = options_.images.channels;
    options.records.scaled_decoding = options_.images.scaled_decoding;
    return options;
  }
  void expect_same_data() const {
    const auto original = open_datasets(options_), records = open_datasets(packed());
    expect_same(*records.train, *original.train);
    ASSERT_EQ(records.eval == nullptr, original.eval == nullptr);
    if (original.eval) expect_same(*records.eval, *original.eval);
  }
  std::string error() const {
    return message_of<DataError>([&] { open_datasets(packed()); });
  }
  /// 500 rows of a table, packed into one shard.
  void pack_table(int classes) {
    std::string table = "a,b\n";
    for (int i = 0; i < 500; ++i) table += fmt::format("{},{}\n", i, i % classes);
    write_file(directory_ / "t.csv", table);
    options_.transforms.clear();
    options_.eval_transforms.clear();
    options_.kind = DataKind::table;
    options_.table = {.files = {"t.csv"}, .target = "b"};
    pack_.shard_bytes = 1 << 20;
    pack_records(options_, pack_);
  }
  std::string path(const std::string& name) const { return pack_.directory + "/" + name; }
  /// Writes the shard with a byte changed.
  void change(const std::string& name, size_t byte) const {
    auto bytes = read_file(path(name));
    bytes.at(byte) ^= 1;
    write_file(path(name), bytes);
  }
  std::map<std::string, test::Bytes> contents() const {
    std::map<std::string, test::Bytes> all;
    for (const auto& name : list_directory(pack_.directory)) all[name] = read_file(path(name));
    return all;
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
  PackOptions pack_;
};

}  // namespace lockstep::data
