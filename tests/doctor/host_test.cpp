#include "doctor/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/test_files.h"
#include "doctor/arithmetic.h"
#include "doctor/launcher.h"
#include "doctor/memory.h"
#include "mentions.h"

namespace lockstep::doctor {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;
constexpr int64_t kMiB = int64_t{1} << 20, kGiB = kMiB << 10;

TEST(DoctorHost, AProgramForAnotherProcessorIsAFailure) {
  EXPECT_EQ(judge_processor({"CPU", {"AVX2", "FMA"}, {"AVX2", "FMA"}}),
            (Finding{Level::ok, "CPU with AVX2, FMA"}));
  const Finding bad = judge_processor({"CPU", {"AVX2", "AVX-512"}, {"AVX2"}});
  EXPECT_EQ(bad.level, Level::fail);
  EXPECT_EQ(bad.found, "CPU lacks AVX-512, which this program was built for");
  EXPECT_THAT(bad.fix, HasSubstr("LOCKSTEP_CPU_ARCH"));
  EXPECT_EQ(judge_processor({"CPU", {"AVX2"}, {"AVX2", "AVX-512"}}).found, "CPU with AVX2, AVX-512");
}

TEST(DoctorHost, LoopsBelowHalfOfThePeakAreAWarning) {
  ops::ArithmeticSpeed speed{
      .instruction_set = "AVX-512", .peak = 100e9, .products = 90e9, .attention = 50e9};
  EXPECT_EQ(
      judge_arithmetic_speed(speed),
      (Finding{Level::ok, "AVX-512, at most 100 GFLOP/s of a core: products reach 90 %, attention 50 %"}));
  speed.attention = 49e9;
  EXPECT_EQ(judge_arithmetic_speed(speed).level, Level::warn);
  EXPECT_THAT(judge_arithmetic_speed(speed).found, HasSubstr("attention 49 %; below half: attention"));
}

TEST(DoctorHost, AShellThatIsBoundToOneCoreIsAWarning) {
  EXPECT_EQ(judge_cores({.host = 1, .allowed = 1}).level, Level::ok);
  EXPECT_EQ(judge_cores({.host = 8, .allowed = 4, .quota = 2}),
            (Finding{Level::ok, "4 of 8 cores may be used, with the time of 2 (control group)"}));
  EXPECT_EQ(judge_cores({.host = 8, .allowed = 1}).level, Level::warn);
  EXPECT_EQ(judge_cores({.host = 8, .allowed = 1}).fix, "taskset -p -c 0-7 $$");
}

TEST(DoctorHost, ClocksThatAreWrongOrSlowAreNamed) {
  EXPECT_EQ(judge_clock({1'800'000'000, "tsc", true}), (Finding{Level::ok, "source tsc, synchronized"}));
  EXPECT_EQ(judge_clock({1'800'000'000, "", false}).level, Level::ok);
  EXPECT_EQ(judge_clock({86'400, "tsc", true}).level, Level::fail);
  EXPECT_EQ(judge_clock({1'800'000'000, "hpet", true}).level, Level::warn);
}

TEST(DoctorHost, FewOpenFilesAreMendedByWhoMay) {
  EXPECT_EQ(judge_open_files({1024, 1024}).level, Level::ok);
  EXPECT_EQ(judge_open_files({1023, 4096}).level, Level::warn);
  EXPECT_EQ(judge_open_files({1023, 4096}).fix, "ulimit -n 4096");
  EXPECT_EQ(judge_open_files({256, 1 << 20}).fix, "ulimit -n 65536");
  EXPECT_THAT(judge_open_files({256, 256}).fix, HasSubstr("prlimit"));
  EXPECT_EQ(judge_open_files({64, 4096}).level, Level::fail);
}

TEST(DoctorMemory, TheNarrowestLimitCounts) {
  const MemoryFacts good{.total = 64 * kGiB, .available = 32 * kGiB};
  EXPECT_EQ(judge_memory(good), (Finding{Level::ok, "32.00 GiB of 64.00 GiB are available"}));
  MemoryFacts little = good;
  little.available = 900 * kMiB;
  EXPECT_EQ(judge_memory(little).level, Level::warn);
  EXPECT_THAT(judge_memory(little).fix, HasSubstr("ps "));
  MemoryFacts grouped = good;
  grouped.group_limit = kGiB;
  grouped.group_used = 900 * kMiB;
  EXPECT_EQ(judge_memory(grouped).level, Level::fail);
  EXPECT_THAT(judge_memory(grouped).fix, HasSubstr("docker run --memory"));
  MemoryFacts limited = good;
  limited.address_limit = kGiB;
  EXPECT_EQ(judge_memory(limited).fix, "ulimit -v unlimited");
}

TEST(DoctorMemory, LimitsOfControlGroupsAreReadInBothVersions) {
  const TemporaryDirectory folder;
  const std::filesystem::path root = folder / "root";
  std::filesystem::create_directories(root / "job" / "step");
  test::write_file(folder / "cgroup", std::string("0::/job/step\n"));
  EXPECT_EQ(group_memory(folder / "cgroup", root).limit, 0);
  test::write_file((root / "job" / "memory.max").string(), std::string("3000\n"));
  test::write_file((root / "job" / "memory.current").string(), std::string("1000\n"));
  test::write_file((root / "job" / "step" / "memory.max").string(), std::string("max\n"));
  EXPECT_EQ(group_memory(folder / "cgroup", root).limit, 3000);
  EXPECT_EQ(group_memory(folder / "cgroup", root).used, 1000);
  test::write_file((root / "job" / "step" / "memory.max").string(), std::string("2500\n"));
  EXPECT_EQ(group_memory(folder / "cgroup", root).limit, 3000);  // less of it is left
  std::filesystem::create_directories(root / "memory");
  test::write_file((root / "memory" / "memory.limit_in_bytes").string(),
                   std::string("9223372036854771712\n"));
  EXPECT_EQ(group_memory(folder / "cgroup", root).limit, 3000);  // no limit
  test::write_file((root / "memory" / "memory.limit_in_bytes").string(), std::string("500\n"));
  EXPECT_EQ(group_memory(folder / "cgroup", root).limit, 500);
}

TEST(DoctorMemory, SharedMemoryMustHoldWhatTheRanksOfThisHostShare) {
  EXPECT_EQ(judge_shared_memory({"", 64 * kMiB, 64 * kMiB, 4}).level, Level::ok);  // a container's
  const Finding many = judge_shared_memory({"", 64 * kMiB, 64 * kMiB, 64});
  EXPECT_EQ(many.level, Level::warn);
  EXPECT_EQ(
      many.found,
      "64.00 MiB of 64.00 MiB are free in /dev/shm, less than the 512.00 MiB that 64 ranks here may need");
  EXPECT_THAT(many.fix, HasSubstr("docker run --shm-size=1g"));
  EXPECT_EQ(judge_shared_memory({"", kGiB, kMiB, 2}).fix, "ls -l /dev/shm");  // somebody has filled it
  EXPECT_THAT(judge_shared_memory({"Permission denied", 0, 0, 2}).found, HasSubstr("Permission denied"));
}

TEST(DoctorLauncher, MpirunMustBeOfTheLibrarysVersion) {
  const std::string library = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
  EXPECT_EQ(judge_mpi({"mpirun (Open MPI) 4.1.4\n", library}),
            (Finding{Level::ok, "Open MPI 4.1.4, mpirun and library"}));
  EXPECT_THAT(judge_mpi({"mpirun (Open MPI) 5.0.3\n", library}).found, Mentions("5.0.3 ... 4.1.4"));
  EXPECT_EQ(judge_mpi({"HYDRA build details:\n", library}).level, Level::fail);
  EXPECT_EQ(judge_mpi({"", library}).fix, "apt-get install openmpi-bin");
  EXPECT_EQ(judge_mpi({"mpirun (Open MPI) 4.1.4\n", "MPICH Version: 4.0"}).level, Level::fail);
  EXPECT_EQ(judge_mpi({"mpirun (Open MPI) 3.1.3\n", "Open MPI v3.1.3, package"}).level, Level::warn);
}

TEST(DoctorLauncher, ATrialThatFailsIsShownWithoutFrames) {
  EXPECT_EQ(judge_mpirun({}).level, Level::skip);
  EXPECT_EQ(judge_mpirun({.found = true, .code = 0, .seconds = 0.25, .output = ""}).level, Level::ok);
  EXPECT_EQ(judge_mpirun({.found = true, .seconds = 0.25, .output = "", .flags = {"--bind-to none"}}).found,
            "starts two processes and ends them in 250 ms; trainings want --bind-to none "
            "(launcher/lockstep-run gives "
            "them)");
  const Finding bad =
      judge_mpirun({.found = true, .code = 1, .seconds = 0.2, .output = "-----\nno slots\n-----\n"});
  EXPECT_EQ(bad.level, Level::fail);
  EXPECT_EQ(bad.found, "ends with 1: no slots");
}

TEST(DoctorLauncher, ATrialThatCrashesIsExplainedByWhatItLacks) {
  const MpirunFacts crashed{.found = true, .code = 139, .output = "", .flags = {}, .host = "node1"};
  MpirunFacts homeless = crashed, poor = crashed;
  homeless.missing = {{"HOME", "/nonexistent"}};
  poor.missing = {{"HOME", "/nonexistent"}, {"PATH", "/bin"}};
  EXPECT_EQ(judge_mpirun(homeless).fix, "export HOME=/nonexistent");
  EXPECT_EQ(judge_mpirun(poor).fix, "export HOME=/nonexistent PATH=/bin");
  EXPECT_THAT(judge_mpirun(poor).found, Mentions("HOME ... PATH"));
  homeless.code = 0;
  EXPECT_EQ(judge_mpirun(homeless).level, Level::ok) << "another mpirun needs nothing";
}

TEST(DoctorLauncher, ATrialThatCrashesIsExplainedByALongHostName) {
  MpirunFacts facts{.found = true, .code = 134, .output = "", .flags = {}, .host = std::string(57, 'h')};
  EXPECT_THAT(judge_mpirun(facts).found, HasSubstr("begins with 57"));
  EXPECT_THAT(judge_mpirun(facts).fix, HasSubstr("hostname"));
  EXPECT_EQ(letters_at_begin(std::string(30, 'h') + "-" + std::string(30, 'h') + "1"), 61u);
  EXPECT_EQ(letters_at_begin("node1" + std::string(58, 'h')), 4u);
  EXPECT_EQ(letters_at_begin("node." + std::string(58, 'd')), 4u);
  facts.host = std::string(56, 'h') + "1h";
  EXPECT_EQ(judge_mpirun(facts).found, "ends with 134: ") << "which is something else";
}

TEST(DoctorLauncher, RootMustBeConfirmed) {
  EXPECT_EQ(judge_root({.user = 1000, .confirmed = false}).level, Level::ok);
  EXPECT_EQ(judge_root({.user = 0, .confirmed = true}).level, Level::ok);
  EXPECT_EQ(judge_root({.user = 0, .confirmed = false}).fix,
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
}

}  // namespace
}  // namespace lockstep::doctor
