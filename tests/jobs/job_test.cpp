#include "jobs/job.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "base/shell_text.h"
#include "base/text.h"
#include "data/test_files.h"
#include "jobs/job_places.h"
#include "mentions.h"

namespace lockstep::jobs {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

class Jobs : public ::testing::Test {
 protected:
  /// A shell script as a job of so many processes.
  ProcessJob script(const std::string& text, int processes = 1) const {
    ProcessJob job;
    job.processes = processes;
    job.program = "/bin/sh";
    job.arguments = {"-c", text};
    job.stdout_path = folder_ / "a/b/out.txt";
    job.stderr_path = folder_ / "c/err.txt";
    return job;
  }

  /// Whether a script has written its number, or another process's, to `name`.
  bool has_begun(const std::string& name) const {
    return ::access((folder_ / name).c_str(), F_OK) == 0 && read_text_file(folder_ / name).ends_with('\n');
  }

  /// Whether that process is gone. One that nobody has buried yet is, too.
  bool is_gone(const std::string& name) const {
    const int pid = std::atoi(read_text_file(folder_ / name).c_str());
    EXPECT_GT(pid, 1);
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string stat;
    return !std::getline(file, stat) || stat.substr(stat.rfind(')')).starts_with(") Z");
  }

  test::TemporaryDirectory folder_;
};

TEST_F(Jobs, ReturnWhatAProgramPrintsAndItsExitCode) {
  const JobOutcome outcome = run_to_end(script("echo result; echo trouble >&2; exit 7"));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.output, "result\n");
  EXPECT_EQ(outcome.error, "trouble\n");
  EXPECT_EQ(outcome.leftover_processes, 0);
  EXPECT_GE(outcome.ended_us, outcome.began_us);
  EXPECT_EQ(run_to_end(script("kill -KILL $$")).code, 128 + SIGKILL);
}

TEST_F(Jobs, GiveTheirEnvironmentToTheProgram) {
  ProcessJob job = script("echo $LOCKSTEP_JOB_TEST $OMPI_MCA_rmaps_base_oversubscribe");
  job.environment["LOCKSTEP_JOB_TEST"] = "told";
  EXPECT_EQ(run_to_end(job).output, "told 1\n");
}

TEST_F(Jobs, StartSeveralProcessesUnderMpirun) {
  const JobOutcome outcome = run_to_end(script("echo rank $OMPI_COMM_WORLD_RANK", 2));
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.output, HasSubstr("rank 0\n"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1\n"));
  EXPECT_EQ(outcome.leftover_processes, 0);
}

TEST_F(Jobs, AreEndedAtTheirLimitWithEveryProcessThatTheyStarted) {
  // One in a session of its own, which no signal to the group reaches, and which ignores what can be ignored.
  ProcessJob job = script("trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > " +
                          (folder_ / "far") + "; while :; do sleep 60; done' & echo $$ > " +
                          (folder_ / "near") + "; echo begun; while :; do sleep 60; done");
  job.limit_seconds = 4;
  const auto began = Clock::now();
  const JobOutcome outcome = run_to_end(job);
  EXPECT_FALSE(outcome.code);
  EXPECT_GE(seconds_since(began), 4);
  EXPECT_EQ(outcome.output, "begun\n");
  EXPECT_TRUE(is_gone("near"));
  EXPECT_TRUE(is_gone("far"));
}

TEST_F(Jobs, RanksAreEndedWithTheirJob) {
  ProcessJob job = script(
      "trap '' TERM; echo $$ > " + (folder_ / "rank") + "-$OMPI_COMM_WORLD_RANK; while :; do sleep 60; done",
      2);
  job.watch = [&](pid_t) {
    if (has_begun("rank-0") && has_begun("rank-1")) throw std::runtime_error("the watcher's own");
  };
  EXPECT_THROW(run_to_end(job), std::runtime_error);
  EXPECT_TRUE(is_gone("rank-0"));
  EXPECT_TRUE(is_gone("rank-1"));
}

TEST_F(Jobs, WhatOutlivesTheProgramIsCountedAndEnded) {
  const JobOutcome outcome =
      run_to_end(script("setsid sleep 600 & echo $! > " + (folder_ / "left") + "; exit 0"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.leftover_processes, 1);
  EXPECT_TRUE(is_gone("left"));
}

TEST_F(Jobs, ASlowFarewellIsNoLeftover) {
  const auto began = Clock::now();
  const JobOutcome outcome = run_to_end(script("setsid sleep 0.3 & exit 0"));
  EXPECT_EQ(outcome.leftover_processes, 0) << seconds_since(began) << " s";
}

TEST_F(Jobs, AreWatchedWhileTheyRun) {
  ProcessJob job = script("trap 'echo asked; exit 3' USR1; echo > " + (folder_ / "ready") +
                          "; while :; do sleep 0.01; done");
  bool asked = false;
  job.watch = [&](pid_t pid) {
    if (!asked && has_begun("ready")) asked = ::kill(pid, SIGUSR1) == 0;
  };
  const JobOutcome outcome = run_to_end(job);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.output, "asked\n");
}

TEST_F(Jobs, AnErrorOfTheWatcherLeavesNoProcess) {
  ProcessJob job = script("echo $$ > " + (folder_ / "own") + "; setsid sleep 600 & echo $! > " +
                          (folder_ / "far") + "; wait");
  job.watch = [&](pid_t) {
    if (has_begun("far")) throw std::runtime_error("the watcher's own");
  };
  EXPECT_THROW(run_to_end(job), std::runtime_error);
  EXPECT_TRUE(is_gone("own"));
  EXPECT_TRUE(is_gone("far"));
}

TEST_F(Jobs, WhatCannotBeStartedSaysSo) {
  ProcessJob job = script("");
  job.program = folder_ / "no-such-program";
  const JobOutcome outcome = run_to_end(job);
  EXPECT_EQ(outcome.code, 127);
  EXPECT_EQ(outcome.error, "cannot start the program\n");
  job.stdout_path = "/proc/no/such/folder/out";
  EXPECT_THROW(run_to_end(job), IoError);
}

TEST_F(Jobs, FailuresShowTheEndOfWhatWasSaid) {
  JobOutcome outcome;
  outcome.code = 65;
  outcome.error = "first\nlast\n";
  const Error error = job_failure("layout 'dp=2': training", outcome, "runs/x");
  EXPECT_EQ(error.code(), ExitCode::data);
  EXPECT_STREQ(
      error.what(),
      "layout 'dp=2': training ended with exit code 65\n  first\n  last\nall of its output is in runs/x");
  outcome.code = 137;  // no code of ours
  EXPECT_EQ(job_failure("x", outcome, "y").code(), ExitCode::internal);
  outcome.code.reset();
  EXPECT_THAT(job_failure("x", outcome, "y").what(), Mentions("x ... in time"));
}

TEST(TrainingCommand, SaysWhatATrainingIsToldAlways) {
  const TrainingCommand training{.config = "c.textproto",
                                 .assignments = {"trainer.steps=3", "data.directory=a b"},
                                 .layout = {.dp = 2},
                                 .device = "cpu",
                                 .allow_shared_gpu = true};
  EXPECT_THAT(training.arguments(),
              ElementsAre("train", "c.textproto", "--json", "--layout", "dp=2", "--device", "cpu",
                          "--allow-shared-gpu", "--metrics-file-only", "--set=trainer.steps=3",
                          "--set=data.directory=a b"));
}

TEST(JobStart, IsRefusedToEachProcessOfALauncher) {
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("RANK", "1", 1);
  EXPECT_THROW(check_can_start_jobs("verify", 1), ConfigError);
  ::unsetenv("RANK");
  EXPECT_NO_THROW(check_can_start_jobs("verify", 1)) << "somebody's own variable";
  ::unsetenv("WORLD_SIZE");
}

TEST(HostfilePlace, TakesTheEnvironmentThatDecidesToOtherHosts) {
  const test::TemporaryDirectory folder;
  test::write_file(folder / "hosts", "# here alone\nlocalhost slots=2\n");
  ::setenv("OMP_LOCKSTEP_TEST", "1", 1);
  ::setenv("LOCKSTEP_JOB_TEST", "1", 1);
  const std::vector<std::string> options = hostfile_place(folder / "hosts").mpirun_options;
  EXPECT_THAT(options, testing::Contains("OMP_LOCKSTEP_TEST"));
  EXPECT_THAT(options, testing::Not(testing::Contains("LOCKSTEP_JOB_TEST")));
  EXPECT_THAT(options, testing::Not(testing::Contains("HOME")));
  ::unsetenv("OMP_LOCKSTEP_TEST");
  ::unsetenv("LOCKSTEP_JOB_TEST");
  test::write_file(folder / "hosts", "# none\n");
  EXPECT_THROW(hostfile_place(folder / "hosts"), ConfigError);
}

TEST(HostfilePlace, RefusesByLineWhatMpirunDoesNotRead) {
  const test::TemporaryDirectory folder;
  const std::string path = folder / "hosts";
  const auto refusal = [&](const std::string& text) {
    test::write_file(path, text);
    return test::message_of<ConfigError>([&] { hostfile_place(path); });
  };
  EXPECT_THAT(refusal("localhost slots=2\r\n"), HasSubstr(path + ":1: ends in a carriage return"));
  EXPECT_THAT(refusal("localhost\n\r\n"), HasSubstr(path + ":2: ends in a carriage return"));
  EXPECT_THAT(refusal("\xef\xbb\xbflocalhost\n"), HasSubstr(path + ":1: begins with a byte-order mark"));
  EXPECT_THAT(refusal("localhost\nlocalhost:2\n"), HasSubstr(path + ":2: expected 'HOST slots=N'"));
}

TEST(HostfilePlace, SaysWhatReachesOtherHosts) {
  const test::TemporaryDirectory folder;
  test::write_file(folder / "hosts", "elsewhere.example slots=2\n");
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/no/such/folder", 1);
  ::unsetenv("OMPI_MCA_plm_rsh_agent");
  try {
    hostfile_place(folder / "hosts");
    ADD_FAILURE() << "there is no ssh";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("install openssh-client"));
  }
  ::setenv("OMPI_MCA_plm_rsh_agent", "my_rsh", 1);
  EXPECT_NO_THROW(hostfile_place(folder / "hosts"));
  ::unsetenv("OMPI_MCA_plm_rsh_agent");
  ::setenv("PATH", path.c_str(), 1);
}

TEST(ShellLine, QuotesWhatMustBe) {
  EXPECT_EQ(shell_line({"mpirun", "-n", "2", "--set=a=b", "x y", "it's", ""}),
            "mpirun -n 2 --set=a=b 'x y' 'it'\\''s' ''");
  ProcessJob job;
  job.program = "prog";
  job.arguments = {"a"};
  EXPECT_THAT(job.command(), ElementsAre("prog", "a"));
  job.processes = 3;
  EXPECT_THAT(job.command(), ElementsAre("mpirun", "-n", "3", "prog", "a"));
  job.place.mpirun_options = {"--host", "a"};
  job.processes = 1;
  EXPECT_THAT(job.command(), ElementsAre("mpirun", "-n", "1", "--host", "a", "prog", "a"))
      << "not on this host, but on the one that is named";
  job.place.starter = {"on", "a"};
  EXPECT_THAT(job.command(), ElementsAre("on", "a", "prog", "a"));
  job = {.processes = 3, .arguments = {}};
  EXPECT_THAT(job.command()[3], EndsWith("jobs_test"));
}

}  // namespace
}  // namespace lockstep::jobs
