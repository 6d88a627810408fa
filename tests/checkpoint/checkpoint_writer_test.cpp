#include "checkpoint/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/faulty_file_system.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::FaultyFileSystem;
using test::latest_of_all_complete;
using test::loaded;
using test::message_of;
using test::save;
using test::SmallState;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fault = FaultyFileSystem::Fault;

TEST(CheckpointWriter, ReplacesACheckpointOfTheSameStep) {
  const TemporaryDirectory folder;
  save(folder.path(), 1, SmallState(1));
  save(folder.path(), 1, SmallState(2));
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000001"));
  EXPECT_EQ(loaded(*latest_of_all_complete(folder.path())), SmallState(2));
}

TEST(CheckpointWriter, KeepsTheNewest) {
  const TemporaryDirectory folder;
  for (const int64_t step : {1, 2, 3, 4}) save(folder.path(), step, SmallState(1), 2);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000003", "step-00000004"));
  save(folder.path(), 5, SmallState(1), 0);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000003", "step-00000004", "step-00000005"));
}

TEST(CheckpointWriter, KeepsTheBestThatIsThere) {
  const TemporaryDirectory folder;
  const auto save_of = [&](int64_t step, int64_t best) {
    save(folder.path(), step, SmallState(1), 1, posix_file_system(), best);
  };
  save_of(1, 1);
  save_of(2, 2);
  save_of(3, 2);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000002", "step-00000003"));
  // That of step 4, which was better, could not be written.
  save_of(5, 4);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000002", "step-00000005"));
  save_of(6, 6);
  save_of(7, 6);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000006", "step-00000007"));
}

TEST(CheckpointWriter, NeverDeletesWhatItJustWroteNorWhatIsDamaged) {
  const TemporaryDirectory folder;
  for (const int64_t step : {10, 20, 90, 100}) save(folder.path(), step, SmallState(1));
  fs::remove(folder / "step-00000020/manifest.json");
  // Resumed from 20 or 10, with later ones still there.
  save(folder.path(), 30, SmallState(1), 1);
  EXPECT_THAT(list_directory(folder.path()),
              ElementsAre("step-00000020", "step-00000030", "step-00000090", "step-00000100"));
}

TEST(CheckpointWriter, ClearsWhatInterruptedWritersLeft) {
  const TemporaryDirectory folder;
  save(folder.path(), 1, SmallState(1));
  fs::rename(folder / "step-00000001", folder / "step-00000001.previous");  // interrupted between two renames
  fs::create_directories(folder / "step-00000002.tmp/deep");
  fs::create_directory(folder / "step-00000001.deleted.tmp");
  fs::create_directory(folder / "somebody.tmp");
  EXPECT_EQ(loaded(*latest_of_all_complete(folder.path())), SmallState(1))
      << "set aside, but still the newest";
  save(folder.path(), 3, SmallState(3));
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("somebody.tmp", "step-00000001", "step-00000003"));
}

TEST(CheckpointWriter, IsNotHinderedByALateWriterOfAnotherStep) {
  // It makes its next file while its folder is being removed.
  class Late : public FaultyFileSystem {
   public:
    Late() : FaultyFileSystem(Fault::none, 0) {}
    void remove_all(const std::string& path) override {
      if (path.ends_with("step-00000002.tmp")) throw_io_error("remove", path, path, ENOTEMPTY);
      FaultyFileSystem::remove_all(path);
    }
  } files;
  const TemporaryDirectory folder;
  fs::create_directory(folder / "step-00000002.tmp");
  fs::create_directory(folder / "step-00000001.tmp");
  save(folder.path(), 3, SmallState(3), 0, files);
  EXPECT_EQ(loaded(*latest_of_all_complete(folder.path())), SmallState(3));
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000002.tmp", "step-00000003"));
  EXPECT_THAT(message_of<IoError>([&] { save(folder.path(), 2, SmallState(2), 0, files); }),
              HasSubstr("step-00000002.tmp: Directory not empty"))
      << "what is in its own way is an error";
}

TEST(CheckpointWriter, AbandonLeavesNoTrace) {
  const TemporaryDirectory folder;
  CheckpointWriter writer(folder.path(), 3);
  writer.begin();
  writer.write_shard(FileKind::model, 1, 1, SmallState(1).parameters());
  writer.abandon();
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

TEST(CheckpointWriter, SaysWhenTheDiskIsTooSmallBeforeWriting) {
  const TemporaryDirectory folder;
  CheckpointWriter writer(folder.path(), 3);
  EXPECT_THAT(message_of<IoError>([&] { writer.begin(INT64_MAX); }),
              Mentions("step-00000003 ... free space"));
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

TEST(FileSystem, AFullDiskIsAnIoErrorThatNamesPathAndSpace) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const auto file = posix_file_system().create("/dev/full");
  try {
    file->write("x", 1);
    FAIL() << "wrote to a full disk";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), ExitCode::disk);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/full"), HasSubstr("free there")));
  }
}

TEST(FileSystem, PathsThatCannotBeAreNamed) {
  const TemporaryDirectory folder;
  write_file(folder / "file", std::string("x"));
  EXPECT_THAT(message_of<IoError>([&] { save(folder / "file/below", 1, SmallState(1)); }),
              HasSubstr("/file: Not a directory"));
  EXPECT_THAT(message_of<IoError>([&] { posix_file_system().create(folder / "absent/x"); }),
              HasSubstr("absent/x"));
}

/// Saves step 1, then `step`, keeping `keep`, with a fault at each operation in turn. Whatever happens, the
/// newest complete checkpoint loads, and the next writer works and leaves nothing behind.
void survive_every_fault(Fault fault, bool power_failure, int64_t step, int keep) {
  for (int at = 1;; ++at) {
    SCOPED_TRACE("fault at operation " + std::to_string(at));
    const TemporaryDirectory folder;
    const std::string directory = folder / "checkpoints";
    save(directory, 1, SmallState(1));
    FaultyFileSystem files(fault, at);
    bool returned = false;
    try {
      save(directory, step, SmallState(2), keep, files);
      returned = true;
    } catch (const NotDurableError& error) {
      ASSERT_EQ(loaded(Checkpoint(error.path)), SmallState(2));
    } catch (const IoError&) {
      ASSERT_NE(fault, Fault::crash);
    } catch (const test::Crash&) {
      ASSERT_EQ(fault, Fault::crash);
    }
    if (power_failure) files.lose_unsynced();

    {
      const auto checkpoint = latest_of_all_complete(directory);
      ASSERT_TRUE(checkpoint);
      const auto state = loaded(*checkpoint);
      if (returned) {
        ASSERT_EQ(state, SmallState(2)) << "what was reported as written is there";
      } else {
        ASSERT_TRUE(state == SmallState(1) || state == SmallState(2));
      }
    }
    save(directory, 3, SmallState(3), 1);
    ASSERT_EQ(loaded(*latest_of_all_complete(directory)), SmallState(3));
    ASSERT_THAT(list_directory(directory), ElementsAre("step-00000003"));
    if (!files.fired()) {
      EXPECT_TRUE(returned);
      EXPECT_GT(at, 20) << "the faults covered the whole protocol";
      return;
    }
  }
}

class EveryFault : public ::testing::TestWithParam<std::tuple<int64_t, int>> {
 protected:
  int64_t step_ = std::get<0>(GetParam());  // 1: replaces the first checkpoint; 2: stands beside it
  int keep_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(StepAndKeep, EveryFault,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(0, 1)));

TEST_P(EveryFault, SurvivesAnIoError) { survive_every_fault(Fault::io_error, false, step_, keep_); }
TEST_P(EveryFault, SurvivesAFullDisk) { survive_every_fault(Fault::no_space, false, step_, keep_); }
TEST_P(EveryFault, SurvivesAKill) { survive_every_fault(Fault::crash, false, step_, keep_); }
TEST_P(EveryFault, SurvivesAnIoErrorBeforeAPowerFailure) {
  survive_every_fault(Fault::io_error, true, step_, keep_);
}
TEST_P(EveryFault, SurvivesAPowerFailure) { survive_every_fault(Fault::crash, true, step_, keep_); }

}  // namespace
}  // namespace lockstep::checkpoint
