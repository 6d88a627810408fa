#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::checkpoint {
namespace {

using test::Bytes;
using test::message_of;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file of this header, exactly, and these many bytes 1, 2, 3, ... of data.
Bytes file_of(const std::string& header, size_t data_bytes) {
  Bytes bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<uint8_t>(header.size() >> shift));
  bytes.insert(bytes.end(), header.begin(), header.end());
  for (size_t i = 1; i <= data_bytes; ++i) bytes.push_back(static_cast<uint8_t>(i));
  return bytes;
}

class Safetensors : public ::testing::Test {
 protected:
  SafetensorsFile open(const std::string& header, size_t data_bytes) {
    write_file(folder_ / "file", file_of(header, data_bytes));
    return SafetensorsFile(folder_ / "file");
  }
  std::string refusal(const std::string& header, size_t data_bytes) {
    return message_of<CheckpointError>([&] { open(header, data_bytes); });
  }
  TemporaryDirectory folder_;
};

TEST_F(Safetensors, WritesTheDocumentedBytes) {
  const float weight[] = {1, -2};
  const uint8_t mask[] = {7, 8, 9};
  const std::vector<NamedTensor> tensors{{"mask", DType::uint8, Shape{3}, mask},
                                         {"w", DType::float32, Shape{1, 2}, weight}};
  const auto written = write_safetensors(posix_file_system(), folder_ / "file", tensors, {{"format", "pt"}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("mask":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  Bytes expected = file_of(header, 0);
  const uint8_t data[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 7, 8, 9};
  expected.insert(expected.end(), std::begin(data), std::end(data));
  EXPECT_EQ(read_file(folder_ / "file"), expected);
  EXPECT_EQ(written.size_bytes, static_cast<int64_t>(expected.size()));
}

TEST_F(Safetensors, ReadsBackEveryType) {
  const std::vector<double> values{0.5, -1, 3, 9};  // their bytes serve for every type
  std::vector<NamedTensor> tensors;
  for (const DType dtype :
       {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32, DType::uint8})
    tensors.push_back({std::string(name_of(dtype)), dtype, Shape{2, 2}, values.data()});
  tensors.push_back({"scalar", DType::int32, Shape{}, values.data()});
  tensors.push_back({"empty", DType::float32, Shape{0, 5}, nullptr});
  write_safetensors(posix_file_system(), folder_ / "file", tensors, {{"a", "b"}});
  const SafetensorsFile file(folder_ / "file");
  EXPECT_EQ(file.entries().size(), 8u);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"a", "b"}}));
  for (const auto& tensor : tensors) {
    const auto* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    Bytes bytes(static_cast<size_t>(tensor.size_bytes()));
    file.read(*entry, bytes.data());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), static_cast<const uint8_t*>(tensor.data)))
        << tensor.name;
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(Safetensors, ReadsSlices) {
  const auto file = open(R"({"t":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}})", 6);
  uint8_t slice[3] = {};
  file.read_slice(file.entries()[0], 2, 3, slice);
  EXPECT_THAT(slice, ElementsAre(3, 4, 5));
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{4, 3}, {-1, 2}, {7, 0}, {0, -1}, {1, INT64_MAX}})
    EXPECT_THROW(file.read_slice(file.entries()[0], first, count, slice), CheckpointError);
}

TEST_F(Safetensors, AcceptsForeignTypesButDoesNotReadThem) {
  const auto file = open(R"({"t":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8);
  uint64_t value;
  EXPECT_THAT(message_of<CheckpointError>([&] { file.read(file.entries()[0], &value); }), HasSubstr("I64"));
}

TEST_F(Safetensors, AcceptsAnEmptyFileOfTensors) {
  EXPECT_TRUE(open("{}", 0).entries().empty());
  EXPECT_TRUE(open("{}      ", 0).entries().empty());
}

TEST_F(Safetensors, RefusesBadHeaders) {
  EXPECT_THAT(refusal("", 0), HasSubstr("expected a header from '{'"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("expected a header from '{'"));
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("expected a header from '{'"));
  EXPECT_THAT(refusal("{}\n", 0), HasSubstr("expected a header from '{'"));
  EXPECT_THAT(refusal("{\"a\":}", 0), HasSubstr("expected JSON"));
  EXPECT_THAT(refusal("{}{}", 0), HasSubstr("expected JSON"));
  EXPECT_THAT(refusal("{\"\xff\":{}}", 0), HasSubstr("expected JSON"));
  EXPECT_THAT(refusal("{\"a\":" + std::string(100'000, '[') + "}", 0), HasSubstr("levels deep"));
  EXPECT_THAT(refusal(R"({"a":1})", 0), Mentions("'a' ... data_offsets"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[]}})", 1), HasSubstr("expected dtype"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":1}})", 1),
              HasSubstr("expected dtype"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":3,"shape":[],"data_offsets":[0,1]}})", 1),
              HasSubstr("expected dtype"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F31","shape":[],"data_offsets":[0,1]}})", 1), HasSubstr("'F31'"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__ of strings"));
  for (const auto* metadata : {"null", "3", "[]", "[\"a\"]", "\"a\""})
    EXPECT_THAT(refusal(std::string("{\"__metadata__\":") + metadata + "}", 0),
                HasSubstr("__metadata__ of strings"));
}

TEST_F(Safetensors, RefusesBadLengths) {
  Bytes bytes = file_of("{}", 0);
  for (size_t size = 0; size < 8; ++size) {
    write_file(folder_ / "file", Bytes(bytes.begin(), bytes.begin() + static_cast<long>(size)));
    EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFile(folder_ / "file"); }),
                HasSubstr("at least 8 bytes"));
  }
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::memcpy(bytes.data(), &length, 8);
    write_file(folder_ / "file", bytes);
    EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFile(folder_ / "file"); }),
                HasSubstr(std::to_string(length)));
  }
  EXPECT_THROW(SafetensorsFile(folder_ / "absent"), IoError);
}

TEST_F(Safetensors, RefusesDuplicateNames) {
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refusal("{\"a\":" + tensor + ",\"a\":" + tensor + "}", 1), HasSubstr("'a' twice"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("'dtype' twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("'k' twice"));
}

TEST_F(Safetensors, RefusesShapesAndSpansThatDoNotFit) {
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(open(tensor("[2]", "[0,8]"), 8).entries().size(), 1u);
  EXPECT_THAT(refusal(tensor("[2]", "[0,7]"), 7), HasSubstr("expected 8 bytes for F32 [2]"));
  EXPECT_THAT(refusal(tensor("[2]", "[8,0]"), 8), HasSubstr("[8, 0]"));
  EXPECT_THAT(refusal(tensor("[2]", "[0,8,16]"), 8), HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(tensor("[4294967296,4294967296]", "[0,0]"), 0), HasSubstr("63 bits"));
  EXPECT_THAT(refusal(tensor("[4611686018427387904]", "[0,0]"), 0),
              HasSubstr("63 bits"));  // 2^62 elements, 2^64 bytes
  for (const auto* bad :
       {"[-1]", "[1.0]", "[1e3]", "[\"1\"]", "[18446744073709551615]", "[99999999999999999999]", "2", "null"})
    EXPECT_THAT(refusal(tensor(bad, "[0,4]"), 4), HasSubstr("integers from 0 on")) << bad;
  EXPECT_THAT(refusal(tensor("[1]", "[0,-4]"), 4), HasSubstr("integers from 0 on"));
  EXPECT_THAT(refusal(tensor("[1]", "[0.0,4]"), 4), HasSubstr("integers from 0 on"));
}

TEST_F(Safetensors, RefusesGapsOverlapsAndRests) {
  const auto two = [](int a_begin, int a_end, int b_begin, int b_end) {
    const auto tensor = [](const char* name, int begin, int end) {
      return std::string("\"") + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) +
             R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    };
    return "{" + tensor("a", a_begin, a_end) + "," + tensor("b", b_begin, b_end) + "}";
  };
  EXPECT_EQ(open(two(2, 4, 0, 2), 4).entries()[0].name, "b") << "order in the header is free";
  EXPECT_THAT(refusal(two(0, 2, 3, 4), 4), HasSubstr("a gap"));
  EXPECT_THAT(refusal(two(1, 2, 2, 4), 4), HasSubstr("a gap"));
  EXPECT_THAT(refusal(two(0, 2, 1, 4), 4), HasSubstr("an overlap"));
  EXPECT_THAT(refusal(two(0, 2, 0, 2), 2), HasSubstr("an overlap"));
  EXPECT_THAT(refusal(two(0, 2, 2, 4), 3), HasSubstr("truncated"));
  EXPECT_THAT(refusal(two(0, 2, 2, 4), 5), HasSubstr("too long"));
  EXPECT_THAT(refusal("{}", 1), HasSubstr("too long"));
}

TEST_F(Safetensors, RefusesEveryTruncation) {
  const Bytes bytes = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_file(folder_ / "file", Bytes(bytes.begin(), bytes.begin() + static_cast<long>(size)));
    EXPECT_THROW(SafetensorsFile(folder_ / "file"), CheckpointError) << size;
  }
}

TEST_F(Safetensors, EveryBitFlipOfTheHeaderIsRefusedOrStaysInBounds) {
  const Bytes bytes =
      file_of(R"({"__metadata__":{"f":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}  )",
              11);
  int refused = 0;
  for (size_t bit = 0; bit < 8 * (bytes.size() - 11); ++bit) {
    Bytes damaged = bytes;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    write_file(folder_ / "file", damaged);
    try {
      const SafetensorsFile file(folder_ / "file");
      int64_t covered = 0;
      for (const auto& entry : file.entries()) {
        EXPECT_EQ(entry.begin, covered);
        covered = entry.end;
        Bytes values(static_cast<size_t>(entry.end - entry.begin));
        if (entry.dtype) file.read(entry, values.data());
      }
      EXPECT_EQ(covered, 11);
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  // Harmless are flips within names, keys and values of the metadata, F32 <-> I32 and the like.
  EXPECT_GT(refused, 1000);
}

TEST_F(Safetensors, WriterRefusesNamesThatNoReaderWouldTake) {
  const float value = 1;
  const auto write = [&](const std::vector<NamedTensor>& tensors) {
    write_safetensors(posix_file_system(), folder_ / "file", tensors);
  };
  const NamedTensor a{"a", DType::float32, Shape{}, &value};
  EXPECT_THROW(write({a, a}), ConfigError);
  EXPECT_THROW(write({{"__metadata__", DType::float32, Shape{}, &value}}), ConfigError);
  EXPECT_THROW(write({{"\xff", DType::float32, Shape{}, &value}}), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "file"));
}

TEST_F(Safetensors, EqualContentsGiveEqualFilesInAnyOrder) {
  const float one = 1, two = 2;
  const NamedTensor a{"a", DType::float32, Shape{}, &one}, b{"b", DType::float32, Shape{}, &two};
  const auto first = write_safetensors(posix_file_system(), folder_ / "1", std::vector{a, b});
  const auto second = write_safetensors(posix_file_system(), folder_ / "2", std::vector{b, a});
  EXPECT_EQ(first.checksums, second.checksums);
  EXPECT_EQ(read_file(folder_ / "1"), read_file(folder_ / "2"));
}

}  // namespace
}  // namespace lockstep::checkpoint
