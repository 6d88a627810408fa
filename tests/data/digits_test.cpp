#include "data/digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/hash.h"
#include "data/dataset.h"
#include "data/glyphs.h"
#include "data/idx.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::HasSubstr;

constexpr DigitsOptions kSmall{.train_count = 200, .eval_count = 50, .seed = 1};
const std::array<std::string, 4> kNames{"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                        "eval-images-idx3-ubyte", "eval-labels-idx1-ubyte"};

uint64_t hash_of_files(const TemporaryDirectory& folder) {
  uint64_t hash = 0;
  for (const auto& name : kNames) {
    const auto bytes = read_file(folder / name);
    hash = hash_combine(hash, hash64(bytes.data(), bytes.size()));
  }
  return hash;
}

TEST(Digits, OpenAsAnIdxDataSet) {
  const TemporaryDirectory folder;
  generate_digits(folder.path(), kSmall);
  DataOptions options;
  options.kind = DataKind::idx;
  options.directory = folder.path();
  options.train_images = kNames[0];
  options.train_labels = kNames[1];
  options.eval_images = kNames[2];
  options.eval_labels = kNames[3];
  const auto data = open_datasets(options);
  EXPECT_EQ(data.train->size(), 200);
  EXPECT_EQ(data.eval->size(), 50);
  EXPECT_EQ(data.train->classes(), 10);
  EXPECT_EQ(data.train->fields()[0].spec.shape, (Shape{28, 28, 1}));
}

// Everything is drawn with exactly rounded operations only: this hash holds on every machine.
TEST(Digits, SameSeedGivesTheSameBytesOnEveryMachine) {
  const TemporaryDirectory folder;
  generate_digits(folder.path(), kSmall);
  EXPECT_EQ(to_hex(hash_of_files(folder)), "99aab1f4cf99658f");
}

TEST(Digits, OtherSeedsPartsAndSamplesDiffer) {
  std::array<uint8_t, 784> base{}, other{};
  draw_digit(1, 0, 5, base);
  draw_digit(2, 0, 5, other);
  EXPECT_NE(base, other);
  draw_digit(1, 1, 5, other);
  EXPECT_NE(base, other);
  draw_digit(1, 0, 6, other);
  EXPECT_NE(base, other);
  draw_digit(1, 0, 5, other);
  EXPECT_EQ(base, other);
}

TEST(Digits, EveryDigitIsAsFrequentAndMostlyInsideThePicture) {
  std::array<int, 10> counts{};
  int64_t ink = 0, border = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    std::array<uint8_t, 784> pixels{};
    ++counts[static_cast<size_t>(draw_digit(3, 0, i, pixels))];
    int64_t strong = 0;
    for (size_t p = 0; p < 784; ++p) {
      const bool inked = pixels[p] > 100;
      strong += inked;
      border += inked && (p % 28 == 0 || p % 28 == 27 || p < 28 || p >= 756);
    }
    EXPECT_GE(strong, 10) << "a digit is visible";
    ink += strong;
  }
  for (const int count : counts) EXPECT_NEAR(count, 200, 65);  // five deviations
  EXPECT_LT(border * 100, ink) << "less than one in a hundred inked pixels touches the border";
}

TEST(Digits, RepeatingChangesNothing) {
  const TemporaryDirectory folder;
  generate_digits(folder.path(), kSmall);
  const auto written = std::filesystem::last_write_time(folder / kNames[0]);
  const auto hash = hash_of_files(folder);
  std::filesystem::remove(folder / kNames[3]);
  generate_digits(folder.path(), kSmall);
  EXPECT_EQ(hash_of_files(folder), hash) << "what was missing is back";
  EXPECT_EQ(std::filesystem::last_write_time(folder / kNames[0]), written) << "what was there is untouched";
}

TEST(Digits, OtherFilesAreNotOverwrittenUnlessAsked) {
  const TemporaryDirectory folder;
  write_file(folder / kNames[2], std::string("somebody's own"));
  EXPECT_THAT(message_of<DataError>([&] { generate_digits(folder.path(), kSmall); }), HasSubstr(kNames[2]));
  EXPECT_EQ(read_file(folder / kNames[2]).size(), 14u);
  EXPECT_FALSE(std::filesystem::exists(folder / kNames[0]))
      << "nothing is written before everything is checked";
  auto options = kSmall;
  options.overwrite = true;
  generate_digits(folder.path(), options);
  EXPECT_EQ(read_idx(folder / kNames[2], 3).dims[0], 50);
}

TEST(Digits, LeavesNoTemporaryFiles) {
  const TemporaryDirectory folder;
  generate_digits(folder / "deep/er", kSmall);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "deep/er"))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 4);
}

TEST(Digits, RefusesFoldersAndCountsThatCannotBe) {
  const TemporaryDirectory folder;
  write_file(folder / "file", std::string("x"));
  EXPECT_THAT(message_of<IoError>([&] { generate_digits(folder / "file/below", kSmall); }),
              HasSubstr("file/below"));
  EXPECT_THROW(generate_digits(folder.path(), {.train_count = 0}), ConfigError);
  EXPECT_THROW(generate_digits(folder.path(), {.eval_count = 1'000'001}), ConfigError);
}

TEST(Digits, EveryGlyphBeginsWhereAPenCanBeSetDown) {
  for (int digit = 0; digit < 10; ++digit) {
    EXPECT_GE(glyphs_of(digit).size(), 2u) << digit;
    for (const auto glyph : glyphs_of(digit)) EXPECT_NE(glyph[0].kind, PenMove::Kind::line) << digit;
  }
}

}  // namespace
}  // namespace lockstep::data
