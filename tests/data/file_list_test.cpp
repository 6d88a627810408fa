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

TEST_F(FileList, TakesTheNameOfTheFolderAsItIs) {
  for (const char* name : {"runs[1]", "a*b", "what?", "back\\slash"}) {
    std::filesystem::create_directories(folder_ / name);
    for (const char* file : {"p_1.bin", "p_2.bin"}) write_file((folder_ / name) + "/" + file, "x");
    options_.directory = folder_ / name;
    EXPECT_THAT(list_files(options_, {"p_*.bin"}),
                ElementsAre((folder_ / name) + "/p_1.bin", (folder_ / name) + "/p_2.bin"));
    options_.other_directory = options_.directory;
    options_.directory = folder_ / "elsewhere";
    EXPECT_EQ(list_files(options_, {"p_*.bin"}).size(), 2u);
    options_.other_directory.reset();
  }
}

TEST_F(FileList, MissesTrainingFilesOnlyIfTheyAreNeeded) {
  EXPECT_THAT(split_files(options_, {"gone_*.bin"}, {"a.bin"}, false).eval, ElementsAre(folder_ / "a.bin"));
  EXPECT_THAT(message_of<IoError>([&] { split_files(options_, {"gone_*.bin"}, {"a.bin"}, true); }),
              HasSubstr("gone_"));
  EXPECT_THAT(message_of<IoError>([&] { split_files(options_, {"a.bin"}, {"gone_*.bin"}, false); }),
              HasSubstr("gone_"));
}

TEST_F(FileList, ReadsListsWithoutTheirByteOrderMark) {
  write_file(folder_ / "list", std::string("\xef\xbb\xbf"
                                           "a.bin\n\nb.bin"));
  EXPECT_THAT(read_list(options_, "list"), ElementsAre("a.bin", "b.bin"));
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
