// Checkpoints whose tensors are divided among files, in any way, and loaded in any other.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/file_digest.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint_testing.h"
#include "data/test_files.h"
#include "mentions.h"

namespace lockstep::checkpoint {
namespace {

using tensor::Extent;
using tensor::Part;
using test::message_of;
using test::TemporaryDirectory;

constexpr const char* kName = "table.momentum";

/// A tensor whose elements are their numbers.
struct Numbered {
  explicit Numbered(Shape of) : shape(std::move(of)), values(static_cast<size_t>(shape.count())) {
    std::iota(values.begin(), values.end(), 0.0f);
  }
  std::vector<float> packed(const Part& part) const {
    std::vector<float> result(static_cast<size_t>(part.count()));
    tensor::copy_common(result.data(), part, values.data(), Part::whole(shape), sizeof(float));
    return result;
  }
  Shape shape;
  std::vector<float> values;
};

/// Saves a tensor as optimizer state in these parts, one part after the other in each of three files.
std::string save_divided(const std::string& directory, const Numbered& table,
                         const std::vector<Part>& parts) {
  constexpr int kFiles = 3;
  const test::SmallState model(1);
  CheckpointWriter writer(directory, 1);
  writer.begin();
  Manifest manifest = model.manifest(1);
  manifest.files = {writer.write_shard(FileKind::model, 1, 1, model.parameters())};
  for (int file = 0; file < kFiles; ++file) {
    std::vector<std::vector<float>> contents;
    std::vector<NamedTensor> tensors;
    for (size_t p = static_cast<size_t>(file); p < parts.size(); p += kFiles) {
      contents.push_back(table.packed(parts[p]));
      tensors.push_back({kName, DType::float32, table.shape, contents.back().data(), parts[p]});
    }
    manifest.files.push_back(writer.write_shard(FileKind::optimizer, file + 1, kFiles, tensors));
  }
  return writer.commit(std::move(manifest));
}

/// Extents that cut [0, size) into up to `most` pieces.
std::vector<Extent> random_cuts(std::mt19937& random, int64_t size, int most) {
  std::vector<int64_t> borders{0, size};
  for (int cut = std::uniform_int_distribution<int>(0, most - 1)(random); cut > 0; --cut)
    borders.push_back(std::uniform_int_distribution<int64_t>(0, size)(random));
  std::sort(borders.begin(), borders.end());
  std::vector<Extent> extents;
  for (size_t i = 1; i < borders.size(); ++i)
    if (borders[i] > borders[i - 1]) extents.push_back({borders[i - 1], borders[i] - borders[i - 1]});
  return extents;
}

/// Ranges; blocks of rows; blocks of columns; or both.
std::vector<Part> random_tiling(std::mt19937& random, const Shape& shape) {
  const int64_t rows = shape[0], columns = shape.count() / rows;
  const auto kind = random() % 4;
  std::vector<Part> parts;
  if (kind == 0) {
    for (const Extent& range : random_cuts(random, shape.count(), 6))
      parts.push_back(Part::range(range.first, range.count));
  } else {
    for (const Extent& row : random_cuts(random, rows, kind == 2 ? 1 : 4))
      for (const Extent& column : random_cuts(random, columns, kind == 1 ? 1 : 4))
        parts.push_back(Part::rectangle(shape, row, column));  // in each block of rows other columns
  }
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

TEST(DividedTensors, LoadIntoAnyOtherDivision) {
  std::mt19937 random(1);
  int rectangles = 0, loads = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const TemporaryDirectory folder;
    const Numbered table(
        Shape{static_cast<int64_t>(1 + random() % 9), static_cast<int64_t>(1 + random() % 5), 3});
    const auto stored = random_tiling(random, table.shape);
    const Checkpoint checkpoint(save_divided(folder.path(), table, stored));
    for (int division = 0; division < 8; ++division)
      for (const Part& part : random_tiling(random, table.shape)) {
        std::vector<float> found(static_cast<size_t>(part.count()) + 2, -1), expected = table.packed(part);
        expected.insert(expected.begin(), -1);
        expected.push_back(-1);
        checkpoint.load(
            FileKind::optimizer,
            std::vector<TensorDestination>{{kName, DType::float32, table.shape, found.data() + 1, part}});
        ASSERT_EQ(found, expected) << describe(part) << " in trial " << trial;
        rectangles += part.is_range() ? 0 : 1;
        ++loads;
      }
    EXPECT_EQ(checkpoint.hash_of(FileKind::optimizer, checkpoint.tensors(FileKind::optimizer).at(0)),
              tensor_hash({kName, DType::float32, table.shape, table.values.data()}));
  }
  EXPECT_GT(loads, 1000);
  EXPECT_GT(rectangles, 200);
}

TEST(DividedTensors, AreReadInFewPieces) {
  const TemporaryDirectory folder;
  const Numbered table(Shape{600, 500});  // 1.2 MB
  const auto left = Part::rectangle(table.shape, {0, 600}, {0, 100}),
             right = Part::rectangle(table.shape, {0, 600}, {100, 400});
  const Checkpoint checkpoint(save_divided(folder.path(), table, {left, right}));
  const auto pieces_of = [&](const Part& part) {
    std::vector<float> found(static_cast<size_t>(part.count()));
    int pieces = 0;
    checkpoint.load(FileKind::optimizer,
                    std::vector<TensorDestination>{{kName, DType::float32, table.shape, found.data(), part}},
                    [&] { ++pieces; });
    EXPECT_EQ(found, table.packed(part)) << describe(part);
    return pieces;
  };
  EXPECT_EQ(pieces_of(right), 1) << "as it lies in the file";
  EXPECT_EQ(pieces_of(Part::rectangle(table.shape, {0, 600}, {0, 10})), 1) << "240 KB with 24 KB in them";
  EXPECT_EQ(pieces_of(Part::rectangle(table.shape, {0, 600}, {100, 1})), 4) << "960 KB, 256 KiB at once";
  EXPECT_EQ(pieces_of(Part::whole(table.shape)), 5);
}

TEST(DividedTensors, OfOtherTypesAreReadInTheirOwnBytes) {
  const Shape shape{600, 1000};
  const auto left = Part::rectangle(shape, {0, 600}, {0, 100}),
             right = Part::rectangle(shape, {0, 600}, {100, 900});
  // 256 KiB at once: so many rows of the right part, whose entry has 900 columns.
  for (const auto& row : {std::pair(DType::float64, 17), {DType::uint8, 3}}) {
    const DType dtype = row.first;
    const int64_t width = size_of(dtype);
    std::vector<std::byte> values(static_cast<size_t>(shape.count() * width));
    std::mt19937 random(3);
    for (std::byte& value : values) value = static_cast<std::byte>(random() & 0xff);
    const auto packed = [&](const Part& part) {
      std::vector<std::byte> result(static_cast<size_t>(part.count() * width));
      tensor::copy_common(result.data(), part, values.data(), Part::whole(shape), width);
      return result;
    };
    const TemporaryDirectory folder;
    const test::SmallState model(1);
    CheckpointWriter writer(folder.path(), 1);
    writer.begin();
    Manifest manifest = model.manifest(1);
    const auto left_values = packed(left), right_values = packed(right);
    manifest.files = {
        writer.write_shard(FileKind::model, 1, 1, model.parameters()),
        writer.write_shard(FileKind::optimizer, 1, 1,
                           std::vector<NamedTensor>{{kName, dtype, shape, left_values.data(), left},
                                                    {kName, dtype, shape, right_values.data(), right}})};
    const Checkpoint checkpoint(writer.commit(std::move(manifest)));
    const auto pieces_of = [&](const Part& part) {
      std::vector<std::byte> found(static_cast<size_t>(part.count() * width));
      int pieces = 0;
      checkpoint.load(FileKind::optimizer,
                      std::vector<TensorDestination>{{kName, dtype, shape, found.data(), part}},
                      [&] { ++pieces; });
      EXPECT_TRUE(found == packed(part)) << name_of(dtype) << ", " << describe(part);
      return pieces;
    };
    EXPECT_EQ(pieces_of(right), 1);
    EXPECT_EQ(pieces_of(Part::rectangle(shape, {0, 600}, {100, 1})), row.second);
    pieces_of(Part::rectangle(shape, {3, 590}, {95, 50}));
    pieces_of(Part::range(777, 123'456));
  }
}

TEST(DividedTensors, WithGapsAndOverlapsAreRefused) {
  const Numbered table(Shape{6, 4});
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    auto parts = random_tiling(random, table.shape);
    const auto refusal = [&] {
      const TemporaryDirectory folder;
      const std::string path = save_divided(folder.path(), table, parts);
      return message_of<CheckpointError>([&] { Checkpoint{path}; });
    };
    const Part last = parts.back();
    const std::string element = "element " + std::to_string(last.first()) + " of tensor 'table.momentum'";
    if (parts.size() > 1) {  // otherwise there is no tensor
      parts.pop_back();
      EXPECT_THAT(refusal(), Mentions(element + " ... in no file"));
      parts.push_back(last);
    }
    // The same entry twice is refused when it is written.
    if (last.count() < 2) continue;
    parts.push_back(Part::range(last.first(), 1));
    EXPECT_THAT(refusal(), Mentions(element + " ... in two parts"));
  }
}

/// What builds wrote that knew ranges alone.
constexpr const char* kRecordOfRanges =
    R"({"crc32c":"0000002a","kind":"optimizer","name":"optimizer-00001-of-00002.safetensors","size_bytes":123,)"
    R"("tensors":[{"dtype":"float32","name":"a.m","shape":[2,3]},)"
    R"({"count":4,"dtype":"float32","first":2,"name":"b.m","shape":[2,3]}],"xxh3":"000000000000002b"})";

FileRecord record_of(const Part& part) {
  return {"optimizer-00001-of-00002.safetensors",
          FileKind::optimizer,
          123,
          {0x2a, 0x2b},
          {{"a.m", DType::float32, Shape{2, 3}}, {"b.m", DType::float32, Shape{2, 3}, part}}};
}

TEST(Divisions, OfRangesAreRecordedAsTheyAlwaysWere) {
  EXPECT_EQ(to_text(record_of(Part::range(2, 4))), kRecordOfRanges);
  EXPECT_EQ(file_record_from_text(kRecordOfRanges), record_of(Part::range(2, 4)));
  EXPECT_EQ(entry_of({"b.m", DType::float32, Shape{2, 3}, Part::range(2, 4)}),
            (TensorRecord{"b.m[2:6]", DType::float32, Shape{4}}));
}

TEST(Divisions, OfRangesAreFilesAsTheyAlwaysWere) {
  const TemporaryDirectory folder;
  const Numbered table(Shape{2, 3});
  const std::string path = save_divided(folder.path(), table, {Part::range(2, 4), Part::range(0, 2)});
  const std::string header =
      R"({"__metadata__":{"conv2d_weight":"[out, kh, kw, in]","flattened_images":"H, W, C","format":"pt"},)"
      R"("table.momentum[2:6]":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  const test::Bytes bytes = test::read_file(path + "/optimizer-00001-of-00003.safetensors");
  const std::string text(bytes.begin(), bytes.end());
  EXPECT_EQ(text.substr(8, header.size()), header);
  const float values[] = {2, 3, 4, 5};
  EXPECT_EQ(text.substr(text.size() - sizeof values),
            std::string(reinterpret_cast<const char*>(values), sizeof values));
  EXPECT_THAT(read_text_file(path + "/manifest.json"), testing::Not(testing::HasSubstr("\"part\"")));
}

/// Writes a file as builds did that knew ranges alone; returns its record as it stood in a manifest.
std::string write_older_file(const std::string& folder, const std::string& name, const std::string& kind,
                             const std::string& header, const std::vector<float>& values,
                             const std::string& tensors) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  test::write_file(folder + "/" + name, bytes);
  FileDigest digest;
  digest.update(bytes.data(), bytes.size());
  const FileChecksums found = digest.checksums();
  return R"({"name":")" + name + R"(","kind":")" + kind + R"(","size_bytes":)" +
         std::to_string(bytes.size()) + R"(,"crc32c":")" + to_hex(found.crc32c).substr(8) + R"(","xxh3":")" +
         to_hex(found.xxh3) + R"(","tensors":[)" + tensors + "]}";
}

TEST(Divisions, OfRangesInAnOlderCheckpointAreRead) {
  const TemporaryDirectory folder;
  const std::string& path = folder.path();
  const std::string files =
      write_older_file(path, "model-00001-of-00001.safetensors", "model",
                       R"({"table":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", {0, 1, 2, 3, 4, 5},
                       R"({"dtype":"float32","name":"table","shape":[2,3]})") +
      "," +
      write_older_file(path, "optimizer-00001-of-00002.safetensors", "optimizer",
                       R"({"table.momentum[2:6]":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
                       {12, 13, 14, 15},
                       R"({"count":4,"dtype":"float32","first":2,"name":"table.momentum","shape":[2,3]})") +
      "," +
      write_older_file(path, "optimizer-00002-of-00002.safetensors", "optimizer",
                       R"({"table.momentum[0:2]":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                       {10, 11},
                       R"({"count":2,"dtype":"float32","first":0,"name":"table.momentum","shape":[2,3]})");
  const std::string zero = R"("0000000000000000")";
  auto manifest = nlohmann::json::parse(
      R"({"format":"lockstep checkpoint","format_version":1,"run_id":"r1","step":1,"data_position":64,)"
      R"("total_steps":10,"total_epochs":0.5,"arithmetic_fingerprint":"","math_fields":[],"seed":)" +
      zero + R"(,"math_hash":)" + zero + R"(,"config_hash":)" + zero + R"(,"dataset_identity":)" + zero +
      R"(,"params_hash":)" + zero + R"(,"state_hash":)" + zero + R"(,"files":[)" + files + "]}");
  manifest["manifest_hash"] = to_hex(hash64(manifest.dump()));
  test::write_file(path + "/manifest.json", manifest.dump());

  const Checkpoint checkpoint(path);
  const std::vector<float> all{10, 11, 12, 13, 14, 15};
  const Shape shape{2, 3};
  const auto loaded = [&](const Part& part) {
    std::vector<float> found(static_cast<size_t>(part.count()));
    checkpoint.load(FileKind::optimizer,
                    std::vector<TensorDestination>{{kName, DType::float32, shape, found.data(), part}});
    return found;
  };
  EXPECT_EQ(loaded(Part::whole(shape)), all);
  EXPECT_THAT(loaded(Part::range(1, 3)), testing::ElementsAre(11, 12, 13));
  EXPECT_THAT(loaded(Part::rectangle(shape, {0, 2}, {1, 1})), testing::ElementsAre(11, 14));
  EXPECT_EQ(checkpoint.hash_of(FileKind::optimizer, checkpoint.tensors(FileKind::optimizer).at(0)),
            tensor_hash({kName, DType::float32, shape, all.data()}));
}

TEST(Divisions, OfRectanglesAreRecorded) {
  const Part part = Part::rectangle(Shape{2, 3}, {0, 2}, {1, 2});
  const std::string text = to_text(record_of(part));
  EXPECT_THAT(text, testing::HasSubstr(R"("part":"1+2x2/3")"));
  EXPECT_EQ(file_record_from_text(text), record_of(part));
  EXPECT_EQ(entry_of({"b.m", DType::float32, Shape{2, 3}, part}),
            (TensorRecord{"b.m[0:2,1:3]", DType::float32, Shape{2, 2}}));
}

TEST(Divisions, BeyondTheTensorAreRefused) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text = kRecordOfRanges;
    const size_t at = text.find(from);
    text.replace(at, from.size(), to);
    return message_of<Error>([&] { file_record_from_text(text); });
  };
  const std::string range = R"("count":4,"dtype":"float32","first":2)", type = R"("dtype":"float32")";
  const auto with = [&](const std::string& fields) { return refusal(range, type + "," + fields); };
  EXPECT_THAT(with(R"("first":2,"count":5)"), Mentions("'b.m' ... [2, 3] ... elements 2 to 6"));
  EXPECT_THAT(with(R"("part":"2+2x2/3")"), Mentions("'b.m' ... [2, 3]"));
  EXPECT_THAT(with(R"("part":"1+2x2/4")"), Mentions("'b.m' ... [2, 3]"));
  EXPECT_THAT(with(R"("part":"everything")"), Mentions("'b.m' ... 'everything'"));
  EXPECT_THAT(with(R"("first":9223372036854775807,"count":4)"), Mentions("'b.m' ... 63 bits"));
  EXPECT_THAT(with(R"("first":2,"count":4,"part":"2+4")"), Mentions("'b.m' ... both"));
  EXPECT_NE(with(R"("count":4)"), "");
  // Whatever is wrong with a record is a fault of the checkpoint, not of a config.
  std::string text = kRecordOfRanges;
  text.replace(text.find(range), range.size(), type + R"(,"part":"everything")");
  EXPECT_THROW(file_record_from_text(text), CheckpointError);
}

}  // namespace
}  // namespace lockstep::checkpoint
