#include "data/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

// There are no real files here: these bytes are of our own making, after the description of the format.
test::Bytes record(const std::vector<uint8_t>& labels, uint8_t first) {
  test::Bytes bytes = labels;
  for (int plane = 0; plane < 3; ++plane)
    for (int i = 0; i < 1024; ++i) bytes.push_back(i < 2 ? static_cast<uint8_t>(first + 10 * plane + i) : 0);
  return bytes;
}

test::Bytes operator+(test::Bytes a, const test::Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Cifar : public ::testing::Test {
 protected:
  Cifar() {
    options_.kind = DataKind::cifar;
    options_.directory = directory_.path();
    options_.cifar.train_files = {"a.bin", "b.bin"};
    write_file(directory_ / "a.bin", record({3}, 1) + record({9}, 101));
    write_file(directory_ / "b.bin", record({0}, 201));
  }
  std::pair<std::vector<float>, int32_t> read(const Dataset& data, int64_t sample) {
    std::vector<float> image(32 * 32 * 3);
    int32_t label = -7;
    const std::array<std::byte*, 2> to{reinterpret_cast<std::byte*>(image.data()),
                                       reinterpret_cast<std::byte*>(&label)};
    data.read(sample, to);
    for (float& value : image) value *= 255;
    return {image, label};
  }
  TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(Cifar, PutsThePlanesSideBySide) {
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.train->classes(), 10);
  const auto [image, label] = read(*data.train, 1);
  EXPECT_EQ(label, 9);
  EXPECT_THAT(std::vector<float>(image.begin(), image.begin() + 6),
              ::testing::Pointwise(::testing::FloatEq(), std::vector<float>{101, 111, 121, 102, 112, 122}));
  EXPECT_EQ(read(*data.train, 2).second, 0);
  EXPECT_THAT(data.train->sample_name(2), AllOf(HasSubstr("record 0"), HasSubstr("b.bin")));
}

TEST_F(Cifar, TakesEitherLabelOfAHundredClasses) {
  write_file(directory_ / "c.bin", record({4, 77}, 1));
  options_.cifar.train_files = {"c.bin"};
  options_.cifar.labels = CifarLabels::cifar100;
  EXPECT_EQ(read(*open_datasets(options_).train, 0).second, 77);
  options_.cifar.labels = CifarLabels::cifar100_coarse;
  EXPECT_EQ(read(*open_datasets(options_).train, 0).second, 4);
  EXPECT_EQ(open_datasets(options_).train->classes(), 20);
}

TEST_F(Cifar, NamesDamage) {
  const auto error = [&] { return message_of<DataError>([&] { open_datasets(options_); }); };
  write_file(directory_ / "b.bin", record({10}, 0));
  EXPECT_THAT(error(), AllOf(HasSubstr("record 0"), HasSubstr("b.bin"), HasSubstr("10")));
  write_file(directory_ / "b.bin", test::Bytes(3072));
  EXPECT_THAT(error(), AllOf(HasSubstr("b.bin"), HasSubstr("3072")));
  write_file(directory_ / "b.bin", test::Bytes());
  EXPECT_THAT(error(), HasSubstr("b.bin"));
}

TEST_F(Cifar, LeavesOutRecordsWithoutAClassAndCountsThem) {
  write_file(directory_ / "b.bin", record({10}, 0) + record({2}, 7) + record({255}, 0));
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.train->damage().left_out, 2);
  EXPECT_EQ(read(*data.train, 2).second, 2);
  EXPECT_THAT(data.train->sample_name(2), HasSubstr("record 1"));
  EXPECT_EQ(data.train->largest(kLabelField, -1).value, 9);
  write_file(directory_ / "b.bin", record({10}, 0) + record({255}, 0));
  options_.cifar.train_files = {"b.bin"};
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options_); }), HasSubstr("b.bin"));
}

TEST_F(Cifar, EvaluatesOnAList) {
  write_file(directory_ / "list", "2\n 0\n");
  options_.cifar.eval_list = "list";
  const auto data = open_datasets(options_);
  ASSERT_EQ(data.train->size(), 1);
  ASSERT_EQ(data.eval->size(), 2);
  EXPECT_EQ(read(*data.train, 0).second, 9);
  EXPECT_EQ(read(*data.eval, 0).second, 3);
  EXPECT_EQ(read(*data.eval, 1).second, 0);
  const uint64_t before = data.eval->identity();
  write_file(directory_ / "list", "1\n0\n");
  EXPECT_NE(open_datasets(options_).eval->identity(), before);
  const auto error = [&] { return message_of<DataError>([&] { open_datasets(options_); }); };
  write_file(directory_ / "list", "3\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("list"), HasSubstr("'3'")));
  write_file(directory_ / "list", "1x\n");
  EXPECT_THAT(error(), HasSubstr("'1x'"));
  write_file(directory_ / "list", "0\n1\n2\n");
  EXPECT_THAT(error(), HasSubstr("train"));
  write_file(directory_ / "list", "1\n");
  options_.cifar.eval_fraction = 0.5;
  EXPECT_THROW(open_datasets(options_), ConfigError);
}

TEST_F(Cifar, DividesByASeed) {
  test::Bytes bytes;
  for (uint8_t i = 0; i < 40; ++i) bytes = bytes + record({static_cast<uint8_t>(i % 2)}, i);
  write_file(directory_ / "a.bin", bytes);
  options_.cifar.train_files = {"a.bin"};
  options_.cifar.eval_fraction = 0.25;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 30);
  EXPECT_EQ(data.eval->size(), 10);
  const uint64_t before = data.eval->identity();
  EXPECT_EQ(open_datasets(options_).eval->identity(), before);
  options_.cifar.split_seed = 5;
  EXPECT_NE(open_datasets(options_).eval->identity(), before);
}

}  // namespace
}  // namespace lockstep::data
