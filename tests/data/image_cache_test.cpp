#include "data/images/image_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <csignal>

#include "data/dataset.h"
#include "data/images/image_writer.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::write_file;
using ::testing::Each;

constexpr int kImages = 24;

class Cache : public ::testing::Test {
 protected:
  Cache() {
    options_.kind = DataKind::images;
    options_.directory = directory_.path();
    options_.images.train = "train";
    options_.images.channels = 1;
    options_.cache_directory = directory_ / "cache";
    options_.cache_bytes = 1 << 20;
    for (int i = 0; i < kImages; ++i) add(i, static_cast<uint8_t>(i));
  }

  std::string source(int image) const {
    return fmt::format("{}/train/class/{:02}.png", directory_.path(), image);
  }
  void add(int image, uint8_t value) const {
    fs::create_directories(directory_ / "train/class");
    write_file(source(image), png_bytes({4, 4, 1}, std::vector<uint8_t>(16, value)));
  }
  std::shared_ptr<const Dataset> open() const { return open_datasets(options_).train; }
  static int value(const Dataset& data, int64_t image) {
    std::vector<float> pixels(16);
    std::byte* to[] = {reinterpret_cast<std::byte*>(pixels.data()), nullptr};
    data.read(image, to);
    return static_cast<int>(std::lround(pixels.front() * 255));
  }
  static std::vector<int> values(const Dataset& data) {
    std::vector<int> all;
    for (int64_t i = 0; i < data.size(); ++i) all.push_back(value(data, i));
    return all;
  }
  static std::vector<int> expected() {
    std::vector<int> all;
    for (int i = 0; i < kImages; ++i) all.push_back(i);
    return all;
  }
  std::vector<std::string> files(const std::string& ending) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(options_.cache_directory))
      if (entry.path().string().ends_with(ending)) found.push_back(entry.path().string());
    return found;
  }
  int64_t bytes_of_copies() const {
    int64_t bytes = 0;
    for (const auto& copy : files(".copy")) bytes += static_cast<int64_t>(fs::file_size(copy));
    return bytes;
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(Cache, KeepsWhatIsReadAndReadsItFromThere) {
  const auto data = open();
  EXPECT_EQ(values(*data), expected());
  EXPECT_EQ(files(".copy").size(), size_t{kImages});
  for (int i = 0; i < kImages; ++i) fs::remove(source(i));
  EXPECT_EQ(values(*data), expected());
}

TEST_F(Cache, ServesLaterRuns) {
  values(*open());
  const auto later = open();
  fs::remove(source(3));
  EXPECT_EQ(value(*later, 3), 3);
}

TEST_F(Cache, UsesNoCopyThatIsPartialChangedOrOfAnotherFile) {
  values(*open());
  const auto data = open();
  const auto copies = files(".copy");
  const auto whole = read_file(copies[0]);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{32}, whole.size() - 1})
    for (const auto& copy : copies) {
      auto bytes = read_file(copy);
      bytes.resize(std::min(size, bytes.size()));
      write_file(copy, bytes);
      EXPECT_EQ(values(*data), expected());
    }
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    auto bytes = read_file(copies[0]);
    bytes[byte] ^= 1;
    write_file(copies[0], bytes);
    ASSERT_EQ(values(*data), expected()) << byte;
  }
  write_file(copies[0], read_file(copies[1]));
  EXPECT_EQ(values(*data), expected());
  fs::remove(copies[2]);
  EXPECT_EQ(values(*data), expected());
  fs::remove_all(options_.cache_directory);
  EXPECT_EQ(values(*data), expected());
}

TEST_F(Cache, TakesNoStateOfAFileForAnother) {
  values(*open());
  add(5, 200);
  // The same time of change, as some tools leave it; the beginning differs.
  EXPECT_EQ(value(*open(), 5), 200);
  const auto data = open();
  add(6, 201);  // while the data are open: of the size that they were opened with
  fs::remove_all(options_.cache_directory + "/");
  EXPECT_EQ(value(*open(), 6), 201);
}

TEST_F(Cache, KeepsNoFileThatChangedAfterItWasOpened) {
  const auto data = open();
  fs::last_write_time(source(4), fs::file_time_type::clock::now() + std::chrono::hours(1));
  value(*data, 4);
  EXPECT_TRUE(files(".copy").empty());
}

TEST_F(Cache, TakesNoMoreBytesThanItMay) {
  options_.cache_bytes = 1000;
  const auto data = open();
  EXPECT_EQ(values(*data), expected());
  EXPECT_EQ(values(*data), expected());
  EXPECT_GT(bytes_of_copies(), 500);
  EXPECT_LE(bytes_of_copies(), 1000);
}

TEST_F(Cache, RemovesTheOldestCopiesOfOthersIfItNeedsTheRoom) {
  values(*open());
  const int64_t needed = bytes_of_copies();
  options_.cache_bytes = needed + needed / 2;
  for (int i = 0; i < kImages; ++i) add(i, static_cast<uint8_t>(100 + i));
  EXPECT_EQ(value(*open(), 0), 100);
  values(*open());
  EXPECT_LE(bytes_of_copies(), options_.cache_bytes);
  for (int i = 0; i < kImages; ++i) fs::remove(source(i));
  // All of the new ones found room.
  int64_t copies = 0;
  for (const auto& copy : files(".copy")) copies += fs::file_size(copy) > 0;
  EXPECT_GE(copies, kImages);
}

TEST_F(Cache, RemovesWhatWasLeftUnfinishedOnlyIfNobodyElseUsesIt) {
  values(*open());
  const std::string part = files(".copy").front() + ".7.7.part";
  write_file(part, std::string("half"));
  {
    const auto other = open();
    write_file(part, std::string("half"));
    open();
    EXPECT_TRUE(fs::exists(part));
  }
  open();
  EXPECT_FALSE(fs::exists(part));
}

TEST_F(Cache, IsDoneWithoutIfTheDiskIsFull) {
  // Every write fails beyond a size, as on a full disk.
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto data = open();
  std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit none { 40, before.rlim_max };
  setrlimit(RLIMIT_FSIZE, &none);
  const auto read = values(*data);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(read, expected());
  EXPECT_TRUE(files(".copy").empty());
  EXPECT_TRUE(files(".part").empty());
}

TEST_F(Cache, NamesAFolderThatCannotBeMade) {
  write_file(directory_ / "file", std::string("no folder"));
  options_.cache_directory = directory_ / "file/cache";
  EXPECT_THROW(open(), IoError);
}

TEST_F(Cache, IsSharedByProcessesEvenIfTheyAreKilled) {
  constexpr int kProcesses = 4;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      bool right = true;
      for (int epoch = 0; epoch < 5 && right; ++epoch) right = values(*open()) == expected();
      _exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  kill(children.back(), SIGKILL);
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (child != children.back()) codes.push_back(status);
  }
  EXPECT_THAT(codes, Each(0));
  const auto data = open();
  EXPECT_EQ(values(*data), expected());
  EXPECT_EQ(files(".copy").size(), size_t{kImages});
  EXPECT_TRUE(files(".part").empty());
  EXPECT_LE(bytes_of_copies(), options_.cache_bytes);
}

}  // namespace
}  // namespace lockstep::data
