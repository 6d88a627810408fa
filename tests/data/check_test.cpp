#include "data/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/images/image_writer.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::write_file;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Check : public ::testing::Test {
 protected:
  Check() { options_.directory = directory_.path(); }
  void add(const std::string& name, const test::Bytes& bytes) {
    fs::create_directories(fs::path(directory_ / name).parent_path());
    write_file(directory_ / name, bytes);
  }
  test::TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(Check, ListsDamagedHeadersAndPixelsOfAllImages) {
  options_.kind = DataKind::images;
  options_.images.train = "train";
  options_.images.eval = "eval";
  // The damage lies behind what is cut out.
  options_.transforms = {CenterCropOptions{2, 2}};
  options_.eval_transforms = {CenterCropOptions{2, 2}};
  const test::Bytes whole = png_bytes({40, 4, 3}, std::vector<uint8_t>(480, 7));
  test::Bytes cut = jpeg_bytes({200, 200, 3}, [] {
    std::vector<uint8_t> pixels(120000);
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i >> 3);
    return pixels;
  }());
  cut.resize(cut.size() / 2);
  for (const char* name : {"train/a/1.png", "train/b/2.png", "eval/a/3.png", "eval/b/4.png"})
    add(name, whole);
  EXPECT_EQ(check_data(options_, 2).damaged(), 0);
  add("train/b/0.png", {1, 2, 3});
  add("train/a/9.jpg", cut);
  add("eval/b/5.jpg", cut);
  const CheckedData checked = check_data(options_, 3);
  EXPECT_EQ(checked.damaged(), 3);
  ASSERT_THAT(checked.on_opening, SizeIs(1));
  EXPECT_EQ(checked.on_opening[0].file, directory_ / "train/b/0.png");
  EXPECT_EQ(checked.on_opening[0].byte, 0);
  ASSERT_THAT(checked.parts, SizeIs(2));
  ASSERT_THAT(checked.parts[0].damaged, SizeIs(1));
  EXPECT_EQ(checked.parts[0].damaged[0].file, directory_ / "train/a/9.jpg");
  EXPECT_EQ(checked.parts[0].damaged[0].sample, 1);
  EXPECT_GT(checked.parts[0].damaged[0].byte, 0);
  EXPECT_THAT(checked.parts[1].damaged, SizeIs(1));
}

TEST_F(Check, ListsDamagedRowsByLineAndByte) {
  options_.kind = DataKind::table;
  options_.table = {.files = {"t.csv"}, .target = "y"};
  write_file(directory_ / "t.csv", std::string("x,y\n1,2\nz,3\n4,5\n6\n"));
  const CheckedData checked = check_data(options_, 1);
  ASSERT_THAT(checked.on_opening, SizeIs(2));
  EXPECT_EQ(checked.on_opening[0].file, directory_ / "t.csv");
  EXPECT_EQ(checked.on_opening[0].sample, 3);
  EXPECT_EQ(checked.on_opening[0].byte, 8);
  EXPECT_EQ(checked.parts.at(0).samples, 2);
}

TEST_F(Check, TellsWhatStopsTheOpening) {
  options_.kind = DataKind::tokens;
  options_.tokens = {.files = {"t.bin"}, .context = 2, .vocabulary = 50};
  write_file(directory_ / "t.bin", test::Bytes{1, 0, 2, 0, 99, 0, 3, 0});
  const CheckedData checked = check_data(options_, 1);
  ASSERT_THAT(checked.on_opening, SizeIs(1));
  EXPECT_THAT(checked.on_opening[0].what, Mentions("t.bin ... byte 4"));
  EXPECT_THAT(checked.parts, IsEmpty());
  fs::remove(directory_ / "t.bin");
  EXPECT_THROW(check_data(options_, 1), IoError);
}

TEST_F(Check, LooksAtAllFilesThatAreReadAsAWhole) {
  options_.kind = DataKind::tokens;
  options_.tokens = {
      .files = {"a.bin", "b.bin", "c.bin"}, .eval_files = {"d.bin"}, .context = 2, .vocabulary = 50};
  write_file(directory_ / "a.bin", test::Bytes{1, 0, 99, 0, 2, 0, 98, 0});
  write_file(directory_ / "b.bin", test::Bytes{1, 0, 2, 0, 3, 0, 4, 0});
  write_file(directory_ / "c.bin", test::Bytes{1, 0, 2});
  write_file(directory_ / "d.bin", test::Bytes{77, 0, 2, 0});
  const CheckedData checked = check_data(options_, 1);
  ASSERT_THAT(checked.on_opening, SizeIs(3));
  EXPECT_THAT(checked.on_opening[0].what, Mentions("a.bin ... byte 2 ... 1 others"));
  EXPECT_EQ(checked.on_opening[1].file, directory_ / "c.bin");
  EXPECT_EQ(checked.on_opening[2].file, directory_ / "d.bin");
  EXPECT_THAT(checked.parts, IsEmpty());
}

TEST_F(Check, ListsEveryDamagedRecordOfCifar) {
  options_.kind = DataKind::cifar;
  options_.cifar = {.train_files = {"1.bin", "2.bin"}, .eval_files = {"3.bin"}};
  test::Bytes records(3 * 3073, 1);
  write_file(directory_ / "3.bin", records);
  records[0] = 10;
  records[2 * 3073] = 200;
  write_file(directory_ / "1.bin", records);
  write_file(directory_ / "2.bin", test::Bytes(3072, 1));
  const CheckedData checked = check_data(options_, 1);
  ASSERT_THAT(checked.on_opening, SizeIs(3));
  EXPECT_EQ(checked.on_opening[0].file, directory_ / "2.bin");
  EXPECT_EQ(checked.on_opening[1].file, directory_ / "1.bin");
  EXPECT_EQ(checked.on_opening[1].sample, 0);
  EXPECT_EQ(checked.on_opening[2].sample, 2);
  EXPECT_EQ(checked.on_opening[2].byte, 2 * 3073);
  EXPECT_THAT(checked.parts, IsEmpty());
  // Whole files have samples, of which damaged ones are left out.
  options_.cifar.train_files = {"1.bin"};
  const CheckedData whole = check_data(options_, 1);
  EXPECT_THAT(whole.on_opening, SizeIs(2));
  ASSERT_THAT(whole.parts, SizeIs(2));
  EXPECT_EQ(whole.parts[0].samples, 1);
}

TEST_F(Check, TellsDamageOfFilesThatTrainAndEvaluateOnce) {
  options_.kind = DataKind::idx;
  options_.train_images = options_.eval_images = "i";
  options_.train_labels = options_.eval_labels = "l";
  write_file(directory_ / "i", test::Bytes{1, 2});
  write_file(directory_ / "l", test::Bytes{3});
  const CheckedData checked = check_data(options_, 1);
  ASSERT_THAT(checked.on_opening, SizeIs(2));
  EXPECT_EQ(checked.on_opening[0].file, directory_ / "i");
  EXPECT_EQ(checked.on_opening[1].file, directory_ / "l");
}

}  // namespace
}  // namespace lockstep::data
