#include "train/start/shared_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/faulty_file_system.h"
#include "data/test_files.h"
#include "mentions.h"
#include "train/loop/run_output.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What each rank throws; "" for nothing. All throw the same.
std::string message_for(const std::vector<std::string>& directories, const std::vector<std::string>& hosts,
                        std::chrono::milliseconds patience = std::chrono::seconds(5)) {
  std::vector<std::string> messages(directories.size());
  run_ranks(static_cast<int>(directories.size()), [&](int rank, comm::Communicator& world) {
    const auto r = static_cast<size_t>(rank);
    try {
      check_shared_directory(world, directories[r], hosts[r], patience);
    } catch (const comm::CollectiveError& error) {
      EXPECT_TRUE(error.code() == ExitCode::usage || error.code() == ExitCode::disk);
      messages[r] = error.what();
    }
  });
  EXPECT_THAT(messages, Each(messages[0]));
  return messages[0];
}

TEST(SharedDirectory, OfAllRanksIsFineAndStaysEmpty) {
  const TemporaryDirectory folder;
  EXPECT_EQ(message_for({folder.path(), folder.path(), folder.path()}, {"a", "b", "b"}), "");
  EXPECT_EQ(message_for({folder.path()}, {"a"}), "");
  EXPECT_THAT(list_directory(folder.path()), IsEmpty());
}

TEST(SharedDirectory, ThatIsAnotherOneOnSomeHostsIsNamedWithThem) {
  const TemporaryDirectory shared, other;
  const auto message =
      message_for({shared.path(), shared.path(), other.path(), other / "absent", shared / "absent"},
                  {"node1", "node1", "node2", "node2", "node3"}, std::chrono::milliseconds(0));
  EXPECT_THAT(
      message,
      Mentions("ranks 2, 3 on host node2, rank 4 on host node3 ... rank 0 on host node1 ... all hosts"));
  EXPECT_THAT(list_directory(shared.path()), IsEmpty());
  EXPECT_THAT(list_directory(other.path()), IsEmpty());
}

TEST(SharedDirectory, ThatRank0CannotWriteToIsAnErrorOfAll) {
  const TemporaryDirectory folder;
  EXPECT_THAT(message_for({folder / "absent", folder.path()}, {"a", "b"}),
              AllOf(HasSubstr("rank 0: cannot create"), HasSubstr("absent")));
}

TEST(SharedDirectory, ThatAnotherRankCannotWriteToIsNamedWithItsHost) {
  const TemporaryDirectory folder;
  // The same folder by so long a path that files in it have none: 4096 bytes are a path's end.
  std::string long_path = folder.path();
  while (long_path.size() + 2 < 4090) long_path += "/.";
  const auto message = message_for({folder.path(), long_path}, {"a", "node2"});
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1: "), HasSubstr("on host node2"), HasSubstr("--out")));
  EXPECT_THAT(list_directory(folder.path()), IsEmpty());
}

TEST(DirectoryLock, MakesItsFolderDurablyAndKeepsOthersOut) {
  const TemporaryDirectory folder;
  test::FaultyFileSystem files(test::FaultyFileSystem::Fault::none, 0);
  const DirectoryLock lock(folder / "runs/first", files);
  EXPECT_EQ(files.operations(), 1) << "not by other ways than the one that syncs what it makes";
  EXPECT_THROW(DirectoryLock(folder / "runs/first"), ConfigError);
  test::write_file(folder / "file", std::string("x"));
  EXPECT_THAT(test::message_of<IoError>([&] { DirectoryLock(folder / "file/below"); }),
              HasSubstr("cannot make the folder " + (folder / "file") + ": Not a directory"));
}

}  // namespace
}  // namespace lockstep::train
