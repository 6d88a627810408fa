#include "observe/machine/memory.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

TEST(HostMemory, HasWhatTheKernelStates) {
  const HostMemory memory = host_memory(
      "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nSwapCached:        5 kB\n"
      "SwapTotal:       200 kB\nSwapFree:        150 kB\n");
  EXPECT_EQ(memory.size_bytes, 1000 * 1024);
  EXPECT_EQ(memory.available_bytes, 400 * 1024);
  EXPECT_EQ(memory.swap_used_bytes, 50 * 1024);
  EXPECT_FALSE(host_memory("MemTotal: 1000 kB\n").available_bytes);
  EXPECT_FALSE(host_memory("").size_bytes);
}

TEST(HostMemory, SwappedBytesAreOfBothDirections) {
  EXPECT_EQ(swapped_bytes("pgpgin 7\npswpin 3\npswpout 4\n", 4096), 7 * 4096);
  EXPECT_FALSE(swapped_bytes("pswpin 3\n", 4096));
}

}  // namespace
}  // namespace lockstep::observe
