#include "observe/machine/disk.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

TEST(Disk, OfAProcessIsWhatReachesDisks) {
  const auto bytes = process_disk_bytes(
      "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: "
      "1\n");
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->read, 4096);
  EXPECT_EQ(bytes->written, 8192);
  EXPECT_FALSE(process_disk_bytes("rchar: 1\n"));
}

TEST(Disk, OfAHostIsOfWholeDisks) {
  constexpr auto kText =
      " 259 0 nvme0n1 10 0 100 5 20 0 200 7 0 8 9\n 259 1 nvme0n1p1 10 0 90 5 20 0 190 7 0 8 9\n"
      "   8 0 sda 1 0 2 3 4 0 6 7 0 8 9\n 253 0 dm-0 10 0 100 5 20 0 200 7 0 8 9\n";
  const auto bytes =
      host_disk_bytes(kText, [](const std::string& name) { return name == "nvme0n1" || name == "sda"; });
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->read, 102 * 512);
  EXPECT_EQ(bytes->written, 206 * 512);
  EXPECT_FALSE(host_disk_bytes(kText, [](const std::string&) { return false; }));
}

}  // namespace
}  // namespace lockstep::observe
