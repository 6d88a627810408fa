#include "doctor/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/test_files.h"
#include "mentions.h"

namespace lockstep::doctor {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;
constexpr int64_t kMebibyte = int64_t{1} << 20;

StorageFacts good() {
  return {.folder = "/runs",
          .file_system = "ext4",
          .free_bytes = 4096 * kMebibyte,
          .written_bytes = 64 * kMebibyte,
          .written_seconds = 0.5,
          .write_problem = "",
          .fsync_problem = "",
          .rename_problem = ""};
}

TEST(DoctorStorage, SaysRoomAndSpeed) {
  EXPECT_EQ(judge_storage(good()),
            (Finding{Level::ok,
                     "/runs (ext4): 4.00 GiB free, writes 128.00 MiB/s with fsync, renames whole folders"}));
  StorageFacts facts = good();
  facts.free_bytes = 500 * kMebibyte;
  EXPECT_EQ(judge_storage(facts).level, Level::warn);
  facts.free_bytes = 50 * kMebibyte;
  EXPECT_EQ(judge_storage(facts),
            (Finding{Level::fail, "/runs (ext4) has only 50.00 MiB free", "df -h /runs"}));
  facts = good();
  facts.written_seconds = 10;
  EXPECT_EQ(judge_storage(facts).level, Level::warn);
}

TEST(DoctorStorage, ALimitOfFilesHasAFixOfItsOwn) {
  StorageFacts facts = good();
  facts.file_limit = 20 * kMebibyte;
  EXPECT_EQ(judge_storage(facts).level, Level::fail);
  EXPECT_EQ(judge_storage(facts).fix, "ulimit -f unlimited");
  facts.file_limit = 500 * kMebibyte;
  EXPECT_EQ(judge_storage(facts).level, Level::warn);
  EXPECT_EQ(judge_storage(facts).fix, "ulimit -f unlimited");
  facts.file_limit = 5000 * kMebibyte;
  EXPECT_EQ(judge_storage(facts).level, Level::ok);
}

TEST(DoctorStorage, WhatWouldLoseCheckpointsIsAFailure) {
  StorageFacts facts = good();
  facts.write_problem = "Read-only file system";
  EXPECT_EQ(judge_storage(facts).found, "/runs (ext4) cannot be written to: Read-only file system");
  facts = good();
  facts.rename_problem = "a folder cannot be renamed: Operation not supported";
  EXPECT_EQ(judge_storage(facts).level, Level::fail);
  facts = good();
  facts.fsync_problem = "fsync of a folder: Invalid argument";
  EXPECT_THAT(judge_storage(facts).found, Mentions("checkpoints ... fsync of a folder"));
}

TEST(DoctorStorage, TheTrialLeavesNothingAndMakesNoFolder) {
  const TemporaryDirectory folder;
  const StorageFacts facts = storage_facts(folder / "not" + std::string("/there/yet"));
  EXPECT_EQ(facts.folder, folder.path());
  EXPECT_EQ(facts.write_problem + facts.fsync_problem + facts.rename_problem, "");
  EXPECT_GT(facts.written_bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(facts.folder));
}

TEST(DoctorStorage, AFileInPlaceOfTheFolderCannotBeWrittenTo) {
  const TemporaryDirectory folder;
  test::write_file(folder / "file", std::string("text"));
  EXPECT_EQ(judge_storage(storage_facts(folder / "file")).level, Level::fail);
}

}  // namespace
}  // namespace lockstep::doctor
