#include "data/file_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileList : public ::testing::Test {
 protected:
  FileList() {
    for (const char* name : {"b_10.bin", "b_2.bin", "a.bin", "x[1].bin"}) write_file(folder_ / name, "x");
    options_.directory = folder_.path();
  }
  TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(FileList, ExpandsPatternsInOrderOfNames) {
  EXPECT_THAT(list_files(options_, {"b_*.bin", "a.bin"}),
              ElementsAre(folder_ / "b_10.bin", folder_ / "b_2.bin", folder_ / "a.bin"));
  EXPECT_THAT(list_files(options_, {"a.bin", "?.bin", "b_2.bin", "b_*"}),
              ElementsAre(folder_ / "a.bin", folder_ / "b_2.bin", folder_ / "b_10.bin"));
}

TEST_F(FileList, TakesTheNameOfAFileAsItIs) {
  EXPECT_THAT(list_files(options_, {"x[1].bin"}), ElementsAre(folder_ / "x[1].bin"));
}

TEST_F(FileList, NamesWhatIsNotThere) {
  EXPECT_THAT(message_of<IoError>([&] { list_files(options_, {"c_*.bin"}); }), HasSubstr("c_*.bin"));
  options_.other_directory = "/nowhere";
  EXPECT_THAT(message_of<IoError>([&] { list_files(options_, {"c.bin"}); }), HasSubstr("c.bin"));
}

TEST(OneLine, ShowsLineBreaksInNames) {
  EXPECT_EQ(one_line("a\nb\x7f"
                     "c"),
            "a\\x0ab\\x7fc");
}

}  // namespace
}  // namespace lockstep::data
