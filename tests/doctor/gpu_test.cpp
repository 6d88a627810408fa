#include "doctor/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

TEST(DoctorGpus, NoDriverIsNothingToWorryAbout) {
  const auto findings = judge_gpus({}, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0], (Finding{Level::skip, "no NVIDIA driver: lockstep computes on CPUs"}));
  EXPECT_EQ(judge_cuda({}).level, Level::skip);
  EXPECT_EQ(judge_nccl({}).level, Level::skip);
}

TEST(DoctorGpus, XidErrorsAreCountedByNumber) {
  const auto counts = xid_counts(
      "4,100,5;usb 1-1: new device\n"
      "4,101,6;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
      "4,102,7;NVRM: Xid (PCI:0000:3b:00): 31, pid=9\n4,103,8;NVRM: Xid (PCI:0000:5e:00): 31, pid=10\n"
      "4,104,9;NVRM: Xid (PCI:0000:3b:00)\n4,105,9;NVRM: Xid (PCI:0000:3b:00): x\n");
  EXPECT_EQ(counts, (std::map<int, int>{{31, 2}, {79, 1}}));
}

TEST(DoctorGpus, XidErrorsAreAWarning) {
  device::NvmlFacts facts{
      .problem = {}, .present = true, .driver = "580", .gpus = {{.name = "GPU"}}, .links = {}};
  EXPECT_EQ(judge_gpus(facts, std::map<int, int>{}).back().level, Level::ok);
  EXPECT_EQ(judge_gpus(facts, {}).back().level, Level::ok);  // not to be read
  const Finding finding = judge_gpus(facts, std::map<int, int>{{79, 2}}).back();
  EXPECT_EQ(finding,
            (Finding{Level::warn, "the kernel's log has GPU errors: XID 79 2 times", "dmesg | grep Xid"}));
}

TEST(DoctorGpus, TheDriverMustKnowTheCudaOfTheProgram) {
  const CudaFacts good{
      .gpus = 1, .libraries = "cuda=13.0 cublaslt=13.0", .driver_problem = {}, .driver_version = 13010};
  EXPECT_EQ(judge_cuda(good), (Finding{Level::ok, "the driver supports CUDA 13.1, this program uses 13.0"}));
  CudaFacts newer = good;
  newer.driver_version = 13000;
  newer.libraries = "cuda=13.2";
  EXPECT_EQ(judge_cuda(newer).level, Level::ok);  // versions of one major number are compatible
  CudaFacts old = good;
  old.driver_version = 12040;
  EXPECT_EQ(judge_cuda(old).level, Level::fail);
  EXPECT_THAT(judge_cuda(old).fix, HasSubstr("CUDA 12"));
  CudaFacts without = good;
  without.libraries.clear();
  EXPECT_EQ(judge_cuda(without).level, Level::warn);
  CudaFacts container = good;
  container.driver_problem = "libcuda.so.1: cannot open shared object file";
  EXPECT_THAT(judge_cuda(container).fix, HasSubstr("NVIDIA_DRIVER_CAPABILITIES"));
  EXPECT_EQ(judge_nccl({.gpus = 1, .library = ""}).level, Level::warn);
  EXPECT_EQ(judge_nccl({.gpus = 1, .library = "nccl=2.28.9"}), (Finding{Level::ok, "nccl=2.28.9"}));
}

}  // namespace
}  // namespace lockstep::doctor
