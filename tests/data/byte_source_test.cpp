#include "data/byte_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/gzip_bytes.h"
#include "data/test_files.h"
#include "data/token_writer.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::Bytes;
using test::gzip;
using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLimit = 1 << 20;

class ByteSources : public ::testing::Test {
 protected:
  /// Few bytes that become twice the limit.
  void write_bomb(const std::string& name, Bytes beginning = {}) {
    beginning.resize(2 * kLimit, 'x');
    const Bytes packed = gzip(beginning);
    EXPECT_LT(static_cast<int64_t>(packed.size()), kLimit / 100);
    write_file(folder_ / name, packed);
  }
  std::string refusal(DataOptions options) {
    options.directory = folder_.path();
    options.most_inflated_bytes = kLimit;
    return message_of<DataError>([&] { open_datasets(options); });
  }
  TemporaryDirectory folder_;
};

TEST_F(ByteSources, InflateUpToALimit) {
  write_file(folder_ / "a", gzip(Bytes(100, 7)));
  EXPECT_EQ(read_all_bytes(folder_ / "a", 100), Bytes(100, 7));
  EXPECT_THAT(message_of<DataError>([&] { read_all_bytes(folder_ / "a", 99); }),
              Mentions("a ... byte ... 99"));
  // Of all members together.
  Bytes two = gzip(Bytes(100, 7));
  const Bytes second = gzip(Bytes(100, 8));
  two.insert(two.end(), second.begin(), second.end());
  write_file(folder_ / "two", two);
  EXPECT_EQ(read_all_bytes(folder_ / "two", 200).size(), 200u);
  EXPECT_THROW(read_all_bytes(folder_ / "two", 150), DataError);
  // What is not compressed takes what it takes on the disk.
  write_file(folder_ / "plain", Bytes(100, 7));
  EXPECT_EQ(read_all_bytes(folder_ / "plain", 10).size(), 100u);
  EXPECT_GT(default_most_inflated(), 64 << 20);
}

TEST_F(ByteSources, EveryKindOfDataNamesAFileThatBecomesTooLarge) {
  const auto names_the_bomb = Mentions("bomb ... byte ... 1048576");
  write_bomb("bomb.csv", {'a', ',', 'b', '\n'});
  EXPECT_THAT(refusal({.kind = DataKind::table, .table = {.files = {"bomb.csv"}, .target = "a"}}),
              names_the_bomb);
  write_bomb("bomb.npy");
  EXPECT_THAT(refusal({.kind = DataKind::table, .table = {.files = {"bomb.npy"}, .target = "0"}}),
              names_the_bomb);
  write_bomb("bomb");
  EXPECT_THAT(refusal({.kind = DataKind::lines, .lines = {.files = {"bomb"}, .length = 2}}), names_the_bomb);
  EXPECT_THAT(refusal({.kind = DataKind::text, .text_file = "bomb", .context = 2}), names_the_bomb);
  EXPECT_THAT(refusal({.kind = DataKind::cifar, .cifar = {.train_files = {"bomb"}}}), names_the_bomb);
  EXPECT_THAT(refusal({.kind = DataKind::images, .images = {.train_list = "bomb"}}), names_the_bomb);
  std::filesystem::create_directories(folder_ / "texts/x");
  write_bomb("texts/x/bomb");
  EXPECT_THAT(refusal({.kind = DataKind::lines, .lines = {.folder = "texts", .length = 2}}), names_the_bomb);
}

// Before memory is taken for what a header claims.
TEST_F(ByteSources, IdxIsRefusedByItsHeader) {
  write_bomb("bomb", {0, 0, 8, 3, 0, 0, 8, 0, 0, 0, 0, 32, 0, 0, 0, 32});  // 2,048 images of 32 x 32
  write_file(folder_ / "labels", Bytes{0, 0, 8, 1, 0, 0, 0, 1, 0});
  EXPECT_THAT(refusal({.kind = DataKind::idx, .train_images = "bomb", .train_labels = "labels"}),
              Mentions("bomb ... byte ... 1048576"));
}

TEST_F(ByteSources, TokensAreNotMadeOfAFileThatBecomesTooLarge) {
  write_bomb("bomb");
  const TokenizeOptions options{
      .texts = {folder_ / "bomb"}, .directory = folder_ / "out", .most_inflated_bytes = kLimit};
  EXPECT_THAT(message_of<DataError>([&] { tokenize(options); }),
              AllOf(HasSubstr("bomb"), HasSubstr("1048576")));
}

}  // namespace
}  // namespace lockstep::data
