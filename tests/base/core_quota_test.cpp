#include "base/core_quota.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>

#include "base/host_memory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class CoreQuota : public testing::Test {
 protected:
  CoreQuota() {
    std::string pattern = (fs::temp_directory_path() / "core_quota_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~CoreQuota() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int quota() { return core_quota(root_ / "membership", root_ / "groups"); }

  fs::path root_;
};

TEST_F(CoreQuota, IsZeroWhereNothingIsSaid) {
  EXPECT_EQ(quota(), 0);
  write("membership", "4:memory:/a\n1:cpu:/\n");
  EXPECT_EQ(quota(), 0);
  write("membership", "0::/a\n");
  write("groups/a/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
  write("groups/a/cpu.max", "nonsense");
  EXPECT_EQ(quota(), 0);
  write("groups/a/cpu.max", "100000 0\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(CoreQuota, IsOfWholeCoresAtLeastOne) {
  write("membership", "0::/\n");
  for (const auto& [text, cores] :
       {std::pair{"200000 100000\n", 2}, {"250000 100000", 3}, {"5000 100000", 1}}) {
    write("groups/cpu.max", text);
    EXPECT_EQ(quota(), cores) << text;
  }
}

TEST_F(CoreQuota, IsTheLeastOfAllGroupsAround) {
  write("membership", "12:pids:/other\n0::/pod/container\n");
  write("groups/pod/container/cpu.max", "max 100000\n");
  write("groups/pod/cpu.max", "400000 100000\n");
  write("groups/other/cpu.max", "100000 100000\n");
  EXPECT_EQ(quota(), 4);
  write("groups/pod/container/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
  write("groups/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
}

TEST_F(CoreQuota, GroupsMayAllowLessMemoryThanTheHostHas) {
  const auto memory = [&] { return host_memory_bytes(root_ / "membership", root_ / "groups"); };
  const int64_t host = memory();
  EXPECT_GT(host, 16 << 20);
  write("membership", "0::/pod/container\n");
  write("groups/pod/container/memory.max", "max\n");
  EXPECT_EQ(memory(), host);
  write("groups/pod/container/memory.max", "9999999999999999\n");
  EXPECT_EQ(memory(), host);
  write("groups/pod/memory.max", "1048576\n");
  EXPECT_EQ(memory(), 1048576);
}

}  // namespace
}  // namespace lockstep
