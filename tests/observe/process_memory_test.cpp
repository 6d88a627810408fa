#include "observe/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace lockstep::observe {
namespace {

constexpr std::string_view kStatus =
    "Name:\tVmHWM: 7 kB\nVmPeak:\t    3892 kB\nVmHWM:\t    2004 kB\nVmRSS:\t       3 "
    "kB\nThreads:\t1\nVmSwap:\t2 MB\nVmLck:\n";

TEST(ProcessMemory, ReadsTheSizesOfTheStatusText) {
  EXPECT_EQ(status_field_bytes(kStatus, "VmHWM"), 2004 * 1024);
  EXPECT_EQ(status_field_bytes(kStatus, "VmRSS"), 3 * 1024);
}

TEST(ProcessMemory, SaysWhereThereIsNoSuchSize) {
  EXPECT_EQ(status_field_bytes(kStatus, "VmPin"), -1);
  EXPECT_EQ(status_field_bytes(kStatus, "VmH"), -1);
  EXPECT_EQ(status_field_bytes(kStatus, "Threads"), -1);
  EXPECT_EQ(status_field_bytes(kStatus, "VmSwap"), -1);
  EXPECT_EQ(status_field_bytes(kStatus, "VmLck"), -1);
  EXPECT_EQ(status_field_bytes("", "VmHWM"), -1);
}

TEST(ProcessMemory, ThePeakStaysWhenMemoryIsGivenBack) {
  constexpr size_t kSize = size_t{64} << 20;
  const int64_t before = process_memory_bytes();
  EXPECT_GT(before, 0);
  void* block = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kSize);
  const int64_t held = process_memory_bytes();
  munmap(block, kSize);
  // Kernels count pages in batches: a megabyte of slack.
  constexpr int64_t kSlack = 1 << 20;
  EXPECT_GE(held, int64_t{kSize} - kSlack);
  EXPECT_LT(process_memory_bytes(), held - int64_t{kSize} / 2);
  EXPECT_GE(process_peak_memory_bytes(), held - kSlack);
}

}  // namespace
}  // namespace lockstep::observe
