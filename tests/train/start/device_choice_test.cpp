#include "train/start/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

device::GpuProbe gpus(std::vector<std::string> uuids, const std::string& name = "NVIDIA H200") {
  device::GpuProbe probe;
  for (const auto& uuid : uuids)
    probe.devices.push_back({.ordinal = static_cast<int>(probe.devices.size()), .name = name, .uuid = uuid});
  return probe;
}

device::GpuProbe none() { return {{}, "there is no CUDA driver; install one"}; }

DeviceRequest wish(DeviceWish wish, bool allow_shared = false) {
  return {.wish = wish, .allow_shared_gpu = allow_shared, .say = {}};
}

std::string device_refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unavailable);
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, TakesTheGpuOfItsPlaceOnTheHost) {
  for (const auto asked : {DeviceWish::automatic, DeviceWish::cuda}) {
    const DeviceChoice choice = choose_device(wish(asked), gpus({"a", "b", "c", "d"}), 2, 4);
    EXPECT_EQ(choice.kind, device::DeviceKind::cuda);
    EXPECT_EQ(choice.ordinal, 2);
    EXPECT_EQ(choice.reason, "computing on GPU 2 (NVIDIA H200)");
  }
  EXPECT_EQ(choose_device(wish(DeviceWish::automatic), gpus({"a", "b", "c"}), 1, 2).ordinal, 1)
      << "one may stay idle";
}

TEST(DeviceChoice, TakesTheOnlyGpuThatItSees) {
  // Where a launcher gives each process a GPU of its own, all of them are number 0.
  EXPECT_EQ(choose_device(wish(DeviceWish::automatic), gpus({"d"}), 3, 4).ordinal, 0);
}

TEST(DeviceChoice, WithoutGpusItIsCpusOrAnError) {
  const DeviceChoice choice = choose_device(wish(DeviceWish::automatic), none(), 0, 1);
  EXPECT_EQ(choice.kind, device::DeviceKind::cpu);
  EXPECT_EQ(choice.reason, "computing on CPUs: there is no CUDA driver; install one");
  EXPECT_EQ(device_refusal([] { choose_device(wish(DeviceWish::cuda), none(), 0, 1); }),
            "--device cuda: there is no CUDA driver; install one");
}

TEST(DeviceChoice, CpusAreTakenWhereTheyAreAskedFor) {
  const DeviceChoice choice = choose_device(wish(DeviceWish::cpu), gpus({"a"}), 0, 1);
  EXPECT_EQ(choice.kind, device::DeviceKind::cpu);
  EXPECT_THAT(choice.reason, IsEmpty());
}

TEST(DeviceChoice, TooFewGpusAreAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(device_refusal([] {
                choose_device(wish(DeviceWish::automatic), gpus({"a", "b"}), 0, 4);
              }),
              AllOf(HasSubstr("2 GPUs for 4 workers"), HasSubstr("at most 2 here (mpirun -n)"),
                    HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("--allow-shared-gpu")));
  EXPECT_EQ(choose_device(wish(DeviceWish::automatic, true), gpus({"a", "b"}), 3, 4).ordinal, 1);
}

TEST(DeviceChoice, NamesAreThoseOfTheCommandLine) {
  EXPECT_EQ(device_wish_from_name("auto"), DeviceWish::automatic);
  EXPECT_EQ(device_wish_from_name("cpu"), DeviceWish::cpu);
  EXPECT_EQ(device_wish_from_name("cuda"), DeviceWish::cuda);
  EXPECT_THROW(device_wish_from_name("gpu"), ConfigError);
}

RankDevice on_gpu(int host, const std::string& uuid, const std::string& name = "NVIDIA H200",
                  const std::string& libraries = "cuda=13.0") {
  return {.host = "host" + std::to_string(host),
          .host_number = host,
          .kind = device::DeviceKind::cuda,
          .name = name,
          .uuid = uuid,
          .libraries = libraries,
          .reason = "computing on GPU"};
}

TEST(DeviceCheck, GpusOfTheirOwnAreFine) {
  check_devices({on_gpu(0, "a"), on_gpu(0, "b"), on_gpu(1, "c")}, true, false);
  check_devices({RankDevice{}, RankDevice{}}, true, false);
}

TEST(DeviceCheck, OneGpuForSeveralRanksIsRefused) {
  const std::vector<RankDevice> ranks{on_gpu(0, "a"), on_gpu(1, "b"), on_gpu(0, "a"), on_gpu(1, "c")};
  EXPECT_THAT(
      device_refusal([&] { check_devices(ranks, false, false); }),
      AllOf(Mentions("ranks 0, 2 ... host0 ... NVIDIA H200, a"), HasSubstr("mpirun -n"),
            HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("--allow-shared-gpu"), Not(HasSubstr("host1"))));
  EXPECT_EQ(device_refusal([&] { check_devices(ranks, false, true); }), "");
}

TEST(DeviceCheck, TheSameNumberOnAnotherHostIsAnotherGpu) {
  check_devices({on_gpu(0, "a"), on_gpu(1, "a")}, true, false);
}

TEST(DeviceCheck, BitsNeedOneModelAndOneSetOfLibraries) {
  const std::vector<RankDevice> models{on_gpu(0, "a"), on_gpu(1, "b", "NVIDIA A100"), on_gpu(0, "c")};
  EXPECT_THAT(device_refusal([&] { check_devices(models, true, false); }),
              AllOf(HasSubstr("rank 1 (host host1): NVIDIA A100"),
                    HasSubstr("ranks 0, 2 (host host0): NVIDIA H200"), HasSubstr("FAST")));
  EXPECT_EQ(device_refusal([&] { check_devices(models, false, false); }), "");
  const std::vector<RankDevice> libraries{on_gpu(0, "a"), on_gpu(1, "b", "NVIDIA H200", "cuda=12.4")};
  EXPECT_THAT(device_refusal([&] { check_devices(libraries, true, false); }),
              HasSubstr("rank 1 (host host1): cuda=12.4"));
}

TEST(DeviceCheck, CpusAndGpusDoNotWorkTogether) {
  const RankDevice on_cpu{
      .host = "host1", .host_number = 1, .reason = "computing on CPUs: there is no CUDA driver"};
  EXPECT_THAT(device_refusal([&] {
                check_devices({on_gpu(0, "a"), on_cpu}, false, true);
              }),
              AllOf(HasSubstr("CPUs (rank 1)"), HasSubstr("GPUs (rank 0)"), Mentions("host1 ... CUDA"),
                    HasSubstr("--device cpu")));
}

/// What each rank throws.
std::vector<std::string> refusals(const std::vector<int>& hosts, const DeviceRequest& request,
                                  const std::function<device::GpuProbe(int rank)>& probe) {
  std::vector<std::string> errors(hosts.size());
  run_ranks(static_cast<int>(hosts.size()), [&](int rank, comm::Communicator& world) {
    try {
      agree_on_device(
          world, request, [&] { return probe(rank); }, hosts,
          "host" + std::to_string(hosts[static_cast<size_t>(rank)]), static_cast<int>(hosts.size()), true);
    } catch (const comm::CollectiveError& error) {
      EXPECT_EQ(error.code(), ExitCode::unavailable);
      errors[static_cast<size_t>(rank)] = error.what();
    }
  });
  return errors;
}

TEST(DeviceAgreement, EachRankTakesTheGpuOfItsPlaceOnItsHost) {
  std::vector<int> ordinals(5, -1);
  std::vector<std::string> said;
  run_ranks(5, [&](int rank, comm::Communicator& world) {
    const std::vector<int> hosts{0, 1, 0, 1, 0};
    DeviceRequest request;
    request.say = [&](const std::string& text) { said.push_back(text); };  // rank 0 alone
    const auto choice = agree_on_device(
        world, request,
        [&] {
          return gpus({"a", "b", "c"});
        },
        hosts, "host", 5, true);
    EXPECT_EQ(choice.kind, device::DeviceKind::cuda);
    ordinals[static_cast<size_t>(rank)] = choice.ordinal;
  });
  EXPECT_THAT(ordinals, ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(said, ElementsAre("computing on GPU 0 (NVIDIA H200)"));
}

TEST(DeviceAgreement, AllRanksLearnThatSomeWouldShareAGpu) {
  const auto one_each = [](int rank) { return gpus({rank == 1 ? "b" : "a"}); };
  for (const auto& error : refusals({0, 0, 0}, wish(DeviceWish::automatic), one_each))
    EXPECT_THAT(error, Mentions("ranks 0, 2 ... host0 ... NVIDIA H200, a"));
  EXPECT_THAT(refusals({0, 0, 0}, wish(DeviceWish::automatic, true), one_each), testing::Each(IsEmpty()));
}

TEST(DeviceAgreement, AllRanksLearnThatOneHostHasNoGpu) {
  const auto first_host_alone = [](int rank) { return rank < 2 ? gpus({"a", "b"}) : none(); };
  for (const auto& error : refusals({0, 0, 1}, wish(DeviceWish::automatic), first_host_alone))
    EXPECT_THAT(error, AllOf(HasSubstr("CPUs (rank 2)"), HasSubstr("CUDA driver")));
  for (const auto& error : refusals({0, 0, 1}, wish(DeviceWish::cuda), first_host_alone))
    EXPECT_EQ(error, "rank 2: --device cuda: there is no CUDA driver; install one");
}

TEST(DeviceAgreement, SharingNeedsTheConsentOfAllRanks) {
  run_ranks(2, [](int rank, comm::Communicator& world) {
    EXPECT_THROW(
        agree_on_device(
            world, wish(DeviceWish::cuda, rank == 0), [] { return gpus({"a"}); }, {0, 0}, "host", 2, false),
        comm::CollectiveError);
  });
}

TEST(DeviceAgreement, WhoServesOnProcessorsNeedsNoGpuAndLearnsOfTheOthers) {
  run_ranks(3, [](int rank, comm::Communicator& world) {
    const auto probe = [rank] {
      if (rank == 2) throw InternalError("nobody may ask");
      return gpus({"a", "b"});
    };
    const auto choice =
        agree_on_device(world, wish(DeviceWish::automatic), probe, {0, 0, 0}, "host", 2, true);
    EXPECT_EQ(choice.kind, device::DeviceKind::cuda);
    EXPECT_EQ(choice.ordinal, rank % 2);
  });
}

TEST(DeviceAgreement, CpusNeedNoDriver) {
  run_ranks(2, [](int, comm::Communicator& world) {
    const auto never = []() -> device::GpuProbe { throw InternalError("nobody may ask"); };
    EXPECT_EQ(agree_on_device(world, wish(DeviceWish::cpu), never, {0, 0}, "host", 2, true).kind,
              device::DeviceKind::cpu);
  });
}

}  // namespace
}  // namespace lockstep::train
