#include "control/control_plane.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "control/control_job.h"
#include "mentions.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ControlPlane, RanksThatLeaveInAnyOrderEndNothing) {
  for (const int size : {1, 2, 4}) {
    Job job(size);
    // All are here once each has entered.
    std::atomic<int> entered = 0;
    Gate all;
    job.run([&](int, ControlPlane& plane) {
      plane.configure(quick());
      plane.progress().enter(0, Activity::compute, 0, 1);
      if (++entered == size) all.open();
      EXPECT_TRUE(all.wait());
      plane.leave();
    });
    for (auto& end : job.ends) {
      EXPECT_EQ(end->code, -1);
      EXPECT_EQ(end->text(), "");
    }
  }
}

TEST(ControlPlane, ALostRankIsNamedOnceAndEndsAllOthers) {
  Job job(4);
  const auto folder = std::filesystem::path(testing::TempDir()) / "lockstep_control_plane_lost";
  std::filesystem::remove_all(folder);
  std::atomic<int> ready = 0;
  Gate all;
  job.run([&](int rank, ControlPlane& plane) {
    plane.configure(quick());
    plane.set_crash_directory(folder.string());
    plane.set_describer(
        [](const Progress::Entry& entry) { return "step instruction " + std::to_string(entry.instruction); });
    plane.progress().set_step(rank == 2 ? 6 : 7);
    plane.progress().enter(0, Activity::waiting, 1, 30 + rank);
    if (rank == 2) {
      // Gone once all others are on their way; its destructor says no farewell.
      EXPECT_TRUE(all.wait());
      return;
    }
    if (++ready == 3) all.open();
    EXPECT_TRUE(job.end(rank).ended.wait());
  });
  EXPECT_TRUE(job.others_end_with(200, 2));
  EXPECT_EQ(job.end(2).code, -1);
  const std::string report = job.end(0).text();
  EXPECT_THAT(report, StartsWith("lockstep: error: rank 2 of 4 on host b (pid "));
  EXPECT_THAT(report, HasSubstr("step 8"));
  EXPECT_THAT(report,
              ContainsRegex("\n  rank 1 on a: after step 7, waits [0-9.]+ s in step instruction 31\n"));
  EXPECT_THAT(report,
              ContainsRegex("\n  rank 3 on b: after step 7, waits [0-9.]+ s in step instruction 33\n"));
  EXPECT_THAT(report, EndsWith("\nlockstep: the job ends with exit code 200 (lost: rank 2 on b)\n"));
  for (const int rank : {1, 2, 3}) EXPECT_EQ(job.end(rank).text(), "");
  for (const int rank : {0, 1, 3}) {
    std::ifstream file(folder / ("rank-0000" + std::to_string(rank) + ".txt"));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text, Mentions("200 ... step 7")) << rank;
    EXPECT_THAT(text, HasSubstr("step instruction " + std::to_string(30 + rank)));
    EXPECT_THAT(text, HasSubstr(report));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "rank-00002.txt"));
  std::filesystem::remove_all(folder);
}

TEST(ControlPlane, OthersLeaveOnlyWhenTheLauncherHasSeenTheEndOfALostRank) {
  Job job(2);
  job.timings.reaping = std::chrono::hours(1);
  Gate printed;
  job.customize = [&](int rank, ControlPlaneOptions& options) {
    if (rank == 0) options.print = [&printed](std::string_view) { printed.open(); };
  };
  job.run([&](int rank, ControlPlane&) {
    if (rank == 1) return;
    EXPECT_TRUE(printed.wait());
    EXPECT_EQ(job.end(0).code, -1);
  });
  // The launcher did not come to its turn; the process ends otherwise.
  EXPECT_EQ(job.end(0).code, 200);
}

TEST(ControlPlane, ALostRankZeroIsReportedByOneRankOnEachHost) {
  Job job(5);  // hosts a a b b b
  std::atomic<int> ready = 0;
  Gate all;
  job.run([&](int rank, ControlPlane&) {
    if (++ready == 5) all.open();
    EXPECT_TRUE(all.wait());
    EXPECT_TRUE(rank == 0 || job.end(rank).ended.wait());
  });
  EXPECT_TRUE(job.others_end_with(200, 0));
  for (const int rank : {1, 2}) {
    EXPECT_THAT(job.end(rank).text(), StartsWith("lockstep: error: rank 0 of 5 on host a (pid "));
    EXPECT_THAT(job.end(rank).text(),
                EndsWith("\nlockstep: the job ends with exit code 200 (lost: rank 0 on a)\n"));
  }
  for (const int rank : {0, 3, 4}) EXPECT_EQ(job.end(rank).text(), "");
}

/// Blocks the watchdog thread of whoever calls it as a describer: the rank is then as silent as a stopped
/// process.
std::function<std::string(const Progress::Entry&)> blocker(Gate& release) {
  return [&release](const Progress::Entry&) {
    release.wait();
    return std::string("x");
  };
}

TEST(ControlPlane, ASilentRankIsNamed) {
  Job job(3);
  Gate release, others_ended;
  job.run([&](int rank, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.silent_after = milliseconds(1000);
    plane.configure(options);
    plane.progress().enter(0, Activity::waiting, 0, 0);
    if (rank == 1) plane.set_describer(blocker(release));
    if (rank == 0) {
      EXPECT_TRUE(job.end(0).ended.wait() && job.end(2).ended.wait());
      others_ended.open();
    }
    EXPECT_TRUE(others_ended.wait());
    if (rank == 1) release.open();
    EXPECT_TRUE(job.end(rank).ended.wait());  // the silent one hears of it when it runs again
  });
  EXPECT_TRUE(job.others_end_with(201, -1));
  EXPECT_THAT(job.end(0).text(), Mentions("rank 1 ... 3"));
  EXPECT_THAT(job.end(0).text(), HasSubstr("(watchdog.silent_seconds is 1)"));
  EXPECT_THAT(job.end(0).text(), EndsWith("(silent: rank 1 on a)\n"));
}

TEST(ControlPlane, ASilentRankZeroIsNamedByOthers) {
  Job job(3);
  Gate release;
  std::atomic<int> waiting = 2;
  job.run([&](int rank, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.silent_after = milliseconds(1000);
    plane.configure(options);
    plane.progress().enter(0, Activity::waiting, 0, 0);
    if (rank == 0) {
      plane.set_describer(blocker(release));
      EXPECT_TRUE(release.wait());
      return;
    }
    EXPECT_TRUE(job.end(rank).ended.wait());
    if (--waiting == 0) release.open();
  });
  for (const int rank : {1, 2}) {
    EXPECT_EQ(job.end(rank).code, 201);
    EXPECT_THAT(job.end(rank).text(), EndsWith("(silent: rank 0 on a)\n"));
  }
}

TEST(ControlPlane, AStuckThreadIsNamed) {
  Job job(3);
  job.run([&](int rank, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.storage_deadline = milliseconds(200);
    plane.configure(options);
    plane.set_describer(
        [](const Progress::Entry& entry) { return "place " + std::to_string(entry.instruction); });
    plane.progress().enter(0, Activity::waiting, 0, 1);
    if (rank == 2) plane.progress().enter(Progress::kWriterSlot, Activity::storage, 0, 77);
    EXPECT_TRUE(job.end(rank).ended.wait());
  });
  EXPECT_TRUE(job.others_end_with(201, -1));
  EXPECT_THAT(job.end(0).text(), Mentions("rank 2 ... 3"));
  EXPECT_THAT(job.end(0).text(), HasSubstr("in place 77 (watchdog.storage_seconds is 0.2)"));
  EXPECT_THAT(job.end(0).text(), EndsWith("(stuck: rank 2 on b)\n"));
}

TEST(ControlPlane, ARankThatGetsOnIsNotStuck) {
  Job job(2);
  std::atomic<int> done = 0;
  Gate all;
  job.run([&](int, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.compute_deadline = options.input_deadline = milliseconds(2000);
    plane.configure(options);
    // Twice as long as one instruction may take, in instructions that each take a moment.
    const Deadline end = deadline_in(milliseconds(4200));
    for (int instruction = 0; Clock::now() < end; ++instruction) {
      plane.progress().enter(0, instruction % 2 == 0 ? Activity::compute : Activity::input, 0, 5);
      std::this_thread::sleep_for(milliseconds(50));
    }
    if (++done == 2) all.open();
    EXPECT_TRUE(all.wait());
    plane.leave();
  });
  for (const int rank : {0, 1}) EXPECT_EQ(job.end(rank).code, -1) << job.end(0).text();
}

TEST(ControlPlane, WhereAllWaitTheOneFurthestBehindIsNamed) {
  Job job(3);
  job.run([&](int rank, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.communication_deadline = milliseconds(300);
    plane.configure(options);
    plane.progress().set_step(rank == 1 ? 40 : 41);
    plane.progress().enter(0, Activity::waiting, 0, 1);
    EXPECT_TRUE(job.end(rank).ended.wait());
  });
  EXPECT_TRUE(job.others_end_with(201, -1));
  EXPECT_THAT(job.end(0).text(), EndsWith("(deadlock: rank 1 on a)\n"));
}

TEST(ControlPlane, OneProcessAloneJudgesItself) {
  Job job(1);
  job.run([&](int, ControlPlane& plane) {
    WatchdogOptions options = quick();
    options.input_deadline = milliseconds(200);
    plane.configure(options);
    plane.progress().enter(0, Activity::input, 0, 1);
    EXPECT_TRUE(job.end(0).ended.wait());
  });
  EXPECT_EQ(job.end(0).code, 201);
  EXPECT_THAT(job.end(0).text(), StartsWith("lockstep: error: rank 0 of 1 on host a (pid "));
  EXPECT_THAT(job.end(0).text(), EndsWith("(stuck: rank 0 on a)\n"));
}

TEST(ControlPlane, AFailureOfAnyRankEndsAllWithItsCode) {
  for (const int culprit : {0, 2}) {
    Job job(3);
    std::atomic<int> waiting = 2;
    Gate others_ended;
    job.run([&](int rank, ControlPlane& plane) {
      if (rank == culprit) {
        plane.abort(ExitCode::data, "a shard is damaged");
        EXPECT_TRUE(others_ended.wait());
        return;
      }
      EXPECT_TRUE(job.end(rank).ended.wait());
      if (--waiting == 0) others_ended.open();
    });
    EXPECT_TRUE(job.others_end_with(65, culprit));
    EXPECT_EQ(job.end(culprit).code, -1);  // whoever called abort() ends that process
    EXPECT_EQ(job.end(0).text(), std::string("lockstep: the job ends with exit code 65 (failed: rank ") +
                                     (culprit == 0 ? "0 on a)\n" : "2 on b)\n"));
    EXPECT_EQ(job.end(1).text(), "");
  }
}

TEST(ControlPlane, AbortReturnsOnceRankZeroKnows) {
  // It would return after an hour otherwise.
  Job job(2);
  job.timings.acknowledge = std::chrono::hours(1);
  job.run([&](int rank, ControlPlane& plane) {
    if (rank == 1) return plane.abort(ExitCode::disk, "no space");
    EXPECT_TRUE(job.end(0).ended.wait());
  });
  EXPECT_EQ(job.end(0).code, 74);
}

TEST(ControlPlane, ToldToEndItLeavesWithoutBlame) {
  Job job(3);
  std::atomic<bool> requested = false;
  job.customize = [&](int rank, ControlPlaneOptions& options) {
    // Rank 1 hears of it alone: rank 0 must not take its end for a loss.
    if (rank == 1) options.termination_requested = [&] { return requested.load(); };
  };
  job.run([&](int rank, ControlPlane&) {
    if (rank == 0) requested = true;
    EXPECT_TRUE(job.end(rank).ended.wait());
  });
  EXPECT_TRUE(job.others_end_with(143, -1));
  EXPECT_EQ(job.end(0).text(),
            "lockstep: was told to end (SIGTERM); nothing was saved; use SIGUSR1 or lockstep-run to stop "
            "with a checkpoint\n");
  EXPECT_EQ(job.end(1).text() + job.end(2).text(), "");
}

TEST(ControlPlane, AProcessThatDoesNotEndAfterItsWorkIsEnded) {
  Job job(1);
  job.timings.leave = milliseconds(100);
  job.run([&](int, ControlPlane& plane) {
    plane.leave();
    EXPECT_TRUE(job.end(0).ended.wait());
  });
  EXPECT_EQ(job.end(0).code, 201);
  EXPECT_THAT(job.end(0).text(), Mentions("not ended ... 0 s"));
}

TEST(ControlPlane, MessagesArriveInOrderWhileRanksWork) {
  constexpr int kMessages = 500;
  Job job(3);
  std::atomic<int> done = 0;
  Gate all;
  job.run([&](int rank, ControlPlane& plane) {
    plane.configure(quick());
    Mailbox& mailbox = plane.mailbox();
    EXPECT_EQ(mailbox.rank(), rank);
    EXPECT_EQ(mailbox.size(), 3);
    std::thread sender([&] {
      for (int i = 0; i < kMessages; ++i) {
        if (rank != 0) mailbox.send(0, "up", std::to_string(i));
        if (rank == 0) mailbox.send(1 + i % 2, "down", std::to_string(i));
      }
      mailbox.send(0, "large", std::string(1 << 20, static_cast<char>('a' + rank)));
    });
    if (rank == 0) {
      std::vector<int> next(3, 0);
      for (int i = 0; i < 2 * kMessages; ++i) {
        const auto message = mailbox.receive("up", comm::patience());
        ASSERT_TRUE(message);
        EXPECT_EQ(message->text, std::to_string(next[static_cast<size_t>(message->from)]++));
      }
      std::vector<int> from;
      for (int i = 0; i < 3; ++i) {
        const auto message = mailbox.receive("large", comm::patience());
        ASSERT_TRUE(message);
        EXPECT_EQ(message->text, std::string(1 << 20, static_cast<char>('a' + message->from)));
        from.push_back(message->from);
      }
      EXPECT_THAT(from, testing::UnorderedElementsAre(0, 1, 2));
    } else {
      for (int i = rank - 1; i < kMessages; i += 2) {
        const auto message = mailbox.receive("down", comm::patience());
        ASSERT_TRUE(message);
        EXPECT_EQ(message->from, 0);
        EXPECT_EQ(message->text, std::to_string(i));
      }
    }
    sender.join();
    EXPECT_FALSE(mailbox.receive("nothing", Clock::now()));
    EXPECT_THROW(mailbox.send(3, "x", ""), InternalError);
    EXPECT_THROW(mailbox.send(0, "x", std::string((1 << 20) + 1, 'x')), InternalError);
    if (rank == 2) {
      EXPECT_THROW(mailbox.send(1, "x", ""), InternalError);
    }
    if (++done == 3) all.open();
    EXPECT_TRUE(all.wait());
    plane.leave();
  });
  for (auto& end : job.ends) EXPECT_EQ(end->code, -1) << end->text();
}

}  // namespace
}  // namespace lockstep::control
