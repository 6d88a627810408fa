#include "train/start/launch_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/error.h"
#include "mentions.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LaunchFacts facts(std::map<std::string, std::string> variables, int world_size = 1, int allowed = 8,
                  int cores = 8, int ranks_on_host = 1) {
  return {
      .variable = [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      .world_size = world_size,
      .allowed_cores = allowed,
      .host_cores = cores,
      .ranks_on_host = ranks_on_host};
}

std::string launch_refusal(const LaunchFacts& facts) {
  try {
    check_launcher(facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Launcher, EveryProcessBeingRankZeroIsRecognised) {
  EXPECT_THAT(launch_refusal(facts({{"OMPI_COMM_WORLD_SIZE", "4"}})), HasSubstr("started 4 processes"));
  EXPECT_THAT(launch_refusal(facts({{"PMI_SIZE", "2"}})), Mentions("mpirun ... Open MPI"));
  EXPECT_THAT(launch_refusal(facts({{"SLURM_STEP_NUM_TASKS", "8"}})), HasSubstr("srun --mpi=pmix"));
}

TEST(Launcher, OnesThatDoNotSpeakMpiAreRecognisedByTheirVariables) {
  const std::pair<const char*, const char*> launchers[] = {{"WORLD_SIZE", "RANK"},
                                                           {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                                           {"MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK"},
                                                           {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"}};
  for (const auto& [size, rank] : launchers) {
    EXPECT_THAT(launch_refusal(facts({{size, "2"}, {rank, "0"}})), HasSubstr(std::string(size) + "=2"));
    EXPECT_THAT(launch_refusal(facts({{rank, "1"}})), HasSubstr(std::string(rank) + "=1"));
    EXPECT_EQ(launch_refusal(facts({{size, "1"}, {rank, "0"}})), "") << "one process";
    EXPECT_EQ(launch_refusal(facts({{size, "2"}, {rank, "0"}}, 2)), "") << "which Open MPI connects";
    EXPECT_EQ(launch_refusal(facts({{size, "2"}})), "") << "somebody's own variable";
  }
  EXPECT_THAT(launch_refusal(facts({{"PALS_RANKID", "3"}})), HasSubstr("PALS_RANKID=3"));
  EXPECT_EQ(launch_refusal(facts({{"PALS_RANKID", "0"}})), "") << "whose others end the job";
}

TEST(Launcher, AGoodStartIsLeftAlone) {
  EXPECT_EQ(launch_refusal(facts({})), "");
  EXPECT_EQ(launch_refusal(facts({{"OMPI_COMM_WORLD_SIZE", "4"}}, 4)), "");
  EXPECT_EQ(launch_refusal(facts({{"SLURM_STEP_NUM_TASKS", "8"}}, 8)), "");
  EXPECT_EQ(launch_refusal(facts({{"SLURM_NTASKS", "8"}})), "") << "a batch script that starts one process";
  EXPECT_EQ(launch_refusal(facts({{"WORLD_SIZE", "2"}})), "") << "somebody's own variable";
}

TEST(LaunchFacts, WarnsOfBindingWhereCoresLieIdle) {
  EXPECT_THAT(launch_warnings(facts({}, 2, 1, 8, 2), 2), ElementsAre(Mentions("1 ... 8 cores ... 2")));
  EXPECT_THAT(launch_warnings(facts({}, 8, 1, 8, 8), 2), IsEmpty()) << "every core has its rank";
  EXPECT_THAT(launch_warnings(facts({}, 2, 8, 8, 2), 2), IsEmpty());
}

TEST(LaunchFacts, WarnsOfMoreRanksThanCores) {
  EXPECT_THAT(launch_warnings(facts({}, 4, 2, 2, 4), 1),
              ElementsAre(HasSubstr("4 ranks share 2 cores"), HasSubstr("mpi_yield_when_idle=1")));
  EXPECT_THAT(launch_warnings(facts({{"OMPI_MCA_mpi_yield_when_idle", "1"}}, 4, 2, 2, 4), 1),
              ElementsAre(HasSubstr("4 ranks share 2 cores")));
}

TEST(LaunchFacts, HostsAreNumberedInTheOrderOfRanks) {
  run_ranks(4, [](int rank, comm::Communicator& world) {
    const char* names[] = {"b", "a", "b", "c"};
    EXPECT_THAT(hosts_of_ranks(world, names[rank]), ElementsAre(0, 1, 0, 2));
  });
}

TEST(LaunchFacts, IdleThreadsAreARanksShareOfTheCores) {
  EXPECT_EQ(idle_threads(facts({}, 1, 8, 8, 1)), 8);
  EXPECT_EQ(idle_threads(facts({}, 2, 8, 8, 2)), 4) << "both ranks may run on all cores";
  EXPECT_EQ(idle_threads(facts({}, 8, 1, 8, 8)), 1) << "each is bound to its own core";
  EXPECT_EQ(idle_threads(facts({}, 4, 16, 64, 4)), 16) << "each is bound to a quarter";
  EXPECT_EQ(idle_threads(facts({}, 3, 8, 8, 3)), 2) << "rounded down";
  EXPECT_EQ(idle_threads(facts({}, 4, 2, 2, 4)), 1) << "more ranks than cores";
}

TEST(LaunchFacts, IdleThreadsKeepToTheControlGroupsQuota) {
  auto limited = facts({}, 2, 64, 64, 2);
  limited.quota_cores = 6;
  EXPECT_EQ(idle_threads(limited), 3);
  limited.quota_cores = 1;
  EXPECT_EQ(idle_threads(limited), 1);
  limited.quota_cores = 1000;
  EXPECT_EQ(idle_threads(limited), 32);
}

}  // namespace
}  // namespace lockstep::train
