#include "checkpoint/checkpoint_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/faulty_file_system.h"
#include "data/test_files.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::SmallState;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ShareReport failed(const std::string& error, ExitCode code) {
  ShareReport report;
  report.error = error;
  report.code = code;
  return report;
}

TEST(CheckpointShare, ReportsAndOutcomesTravelAsText) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  CheckpointWriter writer(folder.path(), 1);
  writer.begin();
  const auto report = write_share(writer, {state.parameters(), state.state(), {2, 3}, {1, 1}});
  ASSERT_EQ(report.files.size(), 2u);
  EXPECT_EQ(report.files[0].name, "model-00002-of-00003.safetensors");
  EXPECT_EQ(report.parameter_hashes[1].name, "fc.bias");
  EXPECT_EQ(share_report_from_text(to_text(report)), report);
  EXPECT_EQ(share_report_from_text(to_text(failed("\"quoted\"\n", ExitCode::disk))),
            failed("\"quoted\"\n", ExitCode::disk));
  const SaveOutcome outcome{.step = 3, .path = "p/step-00000003", .error = "e", .code = ExitCode::internal};
  EXPECT_EQ(save_outcome_from_text(to_text(outcome)), outcome);
  EXPECT_THROW(share_report_from_text("{"), CheckpointError);
}

TEST(CheckpointShare, AFailureToWriteIsInTheReport) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  CheckpointWriter writer(folder / "absent", 1);  // without begin()
  const auto report = write_share(writer, {state.parameters(), {}, {1, 1}, {}});
  EXPECT_THAT(report.error, HasSubstr("absent/step-00000001.tmp/model-00001-of-00001.safetensors"));
  EXPECT_EQ(report.code, ExitCode::disk);
  EXPECT_THAT(report.files, IsEmpty());
  EXPECT_EQ(write_share(writer, {}), ShareReport{}) << "who has no tensors writes nothing";
}

TEST(ConcludeSave, NamesTheFirstRankThatFailedAndLeavesNothing) {
  const TemporaryDirectory folder;
  CheckpointWriter writer(folder.path(), 7);
  writer.begin();
  // Ranks 1 and 2 have no share.
  const ShareReports reports{
      {0, {}}, {3, failed("no space", ExitCode::disk)}, {5, failed("other", ExitCode::internal)}};
  const auto outcome = conclude_save(writer, SmallState(1).manifest(7), reports, 0);
  EXPECT_EQ(
      outcome,
      (SaveOutcome{
          .step = 7, .path = "", .error = "rank 3: no space (and 1 more rank)", .code = ExitCode::disk}));
  EXPECT_THAT(list_directory(folder.path()), IsEmpty());
  const auto alone = conclude_save(writer, SmallState(1).manifest(7), {{0, reports.at(3)}}, 0);
  EXPECT_EQ(alone.error, "no space") << "one process alone needs no name";
}

TEST(ConcludeSave, ACheckpointWhoseFolderCannotBeSyncedIsThereAndOldOnesAreKept) {
  const TemporaryDirectory folder;
  const SmallState first(1), second(2);
  test::save(folder.path(), 1, first);
  class Unsyncable : public test::FaultyFileSystem {
   public:
    explicit Unsyncable(std::string folder) : FaultyFileSystem(Fault::none, 0), folder_(std::move(folder)) {}
    void sync_directory(const std::string& path) override {
      if (path == folder_) throw_io_error("sync the folder", path, path, EIO);
      FaultyFileSystem::sync_directory(path);
    }

   private:
    std::string folder_;
  } files(folder.path());
  for (const int64_t step : {2, 1}) {  // beside the one that is there, and in its place
    CheckpointWriter writer(folder.path(), step, files);
    writer.begin();
    const ShareReports reports{
        {0, write_share(writer, {second.parameters(), second.state(), {1, 1}, {1, 1}})}};
    const auto outcome = conclude_save(writer, second.manifest(step), reports, 1);
    EXPECT_EQ(outcome.path, folder / checkpoint_folder_name(step));
    EXPECT_EQ(outcome.error,
              "the checkpoint is complete, but may not survive a power failure: cannot sync the folder " +
                  folder.path() + ": Input/output error");
    EXPECT_EQ(outcome.code, ExitCode::disk);
    EXPECT_EQ(test::loaded(Checkpoint(outcome.path)), second);
  }
  EXPECT_THAT(list_directory(folder.path()),
              ElementsAre("step-00000001", "step-00000001.previous", "step-00000002"));
  EXPECT_EQ(test::loaded(Checkpoint(folder / "step-00000001.previous")), first);
}

TEST(ConcludeSave, WhatCannotBeDeletedIsSaidBesideTheNewCheckpoint) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  test::save(folder.path(), 1, state);
  class Undeletable : public FileSystem {
   public:
    void make_directory(const std::string& path) override { real.make_directory(path); }
    std::unique_ptr<WritableFile> create(const std::string& path) override { return real.create(path); }
    void sync_directory(const std::string& path) override { real.sync_directory(path); }
    void rename(const std::string& from, const std::string& to) override { real.rename(from, to); }
    void remove_all(const std::string& path) override { throw_io_error("remove", path, path, EPERM); }
    int64_t free_bytes(const std::string& path) override { return real.free_bytes(path); }
    FileSystem& real = posix_file_system();
  } files;
  CheckpointWriter writer(folder.path(), 2, files);
  writer.begin();
  const ShareReports reports{{0, write_share(writer, {state.parameters(), state.state(), {1, 1}, {1, 1}})}};
  const auto outcome = conclude_save(writer, state.manifest(2), reports, 1);
  EXPECT_EQ(outcome.path, folder / "step-00000002");
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("older checkpoints"), HasSubstr("Operation not permitted")));
  EXPECT_EQ(Checkpoint(outcome.path).manifest().step, 2);
}

TEST(IoErrors, NameWhatIsFreeWhereTheDiskIsFull) {
  const TemporaryDirectory folder;
  const auto message = [&](const std::string& path, int error) {
    return test::message_of<IoError>([&] { throw_io_error("make the folder", path, path, error); });
  };
  EXPECT_THAT(message(folder / "a/b/c", ENOSPC),
              AllOf(HasSubstr("cannot make the folder " + (folder / "a/b/c") + ": No space left on device ("),
                    HasSubstr("free there); free some space")));
  EXPECT_THAT(message(folder / "a", EDQUOT), HasSubstr("free there"));
  EXPECT_EQ(message("/x/y", EIO), "cannot make the folder /x/y: Input/output error");
}

}  // namespace
}  // namespace lockstep::checkpoint
