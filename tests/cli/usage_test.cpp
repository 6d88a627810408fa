#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void expect_refusal(const std::vector<std::string>& arguments, const std::string& message) {
  const Ran ran = lockstep(arguments);
  EXPECT_EQ(ran.code, 2) << message;
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, StartsWith("lockstep: error: "));
  EXPECT_THAT(ran.err, HasSubstr(message));
  EXPECT_EQ(occurrences(ran.err, "\n"), 1u) << ran.err;
}

TEST(Data, GetsPublicSetsFromAFolderAndKnowsWhatTheyAre) {
  const TemporaryDirectory folder;
  const auto damaged = folder / "damaged";
  std::filesystem::create_directory(damaged);
  write_file(damaged + "/tinyshakespeare.txt", "First Citizen:\n");
  const Ran other = lockstep({"data", "shakespeare", "--out", folder / "a", "--from", damaged});
  EXPECT_EQ(other.code, 65);
  EXPECT_THAT(other.err, Mentions("1115394 bytes ... tinyshakespeare.txt ... 15"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a"));
  const Ran missing = lockstep({"data", "mnist", "--out", folder / "a", "--from", damaged});
  EXPECT_EQ(missing.code, 74);
  EXPECT_THAT(missing.err, HasSubstr("t10k-images-idx3-ubyte"));
  const Ran file =
      lockstep({"data", "mnist", "--out", folder / "a", "--from", damaged + "/tinyshakespeare.txt"});
  EXPECT_EQ(file.code, 2);
  EXPECT_THAT(file.err, HasSubstr("expected a folder, or a URL, of several files"));
  // Nobody answers at that port of this host.
  const Ran offline =
      lockstep({"data", "shakespeare", "--out", folder / "a", "--from", "http://127.0.0.1:9/input.txt"});
  EXPECT_THAT(offline.code, testing::AnyOf(74, 69)) << offline.err;
  EXPECT_THAT(offline.err, HasSubstr("--from FILE"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a"));

  const std::string real =
      std::string(std::getenv("LOCKSTEP_TEST_DATA") ? std::getenv("LOCKSTEP_TEST_DATA") : "");
  if (!std::filesystem::exists(real + "/tinyshakespeare.txt")) GTEST_SKIP() << "there is no " << real;
  for (const std::string set : {"shakespeare", "mnist"}) {
    const std::string from = set == "mnist" ? real + "/mnist" : real + "/tinyshakespeare.txt";
    const Ran got = lockstep({"data", set, "--out", folder / set, "--from", from});
    ASSERT_EQ(got.code, 0) << got.err;
    EXPECT_THAT(got.out, HasSubstr(set + " complete, checksums right"));
    EXPECT_THAT(lockstep({"data", set, "--out", folder / set}).err, HasSubstr("is there already"));
  }
  write_file(folder / "shakespeare/tinyshakespeare.txt", std::string(1115394, 'x'));
  const Ran changed = lockstep({"data", "shakespeare", "--out", folder / "shakespeare"});
  EXPECT_EQ(changed.code, 65);
  EXPECT_THAT(changed.err, HasSubstr("with the checksum 6572a3fb9fde75d3, found "));
}

TEST(Usage, MistakesAreRefusedWithWhatWasProbablyMeant) {
  expect_refusal({}, "a command: train, eval, verify");
  expect_refusal({"trian"}, "no command 'trian' (did you mean 'train'?)");
  expect_refusal({"trian", "c.textproto", "--data-dir", "x"}, "no command 'trian' (did you mean 'train'?)");
  for (const auto& [flag, field] : {std::pair{"--lr", "optimizer.learning_rate"},
                                    {"--epochs", "trainer.epochs"},
                                    {"--batch-size", "trainer.global_batch"}})
    expect_refusal({"train", "c.textproto", flag, "1"}, std::string("--set ") + field);
  expect_refusal({"--jsn"}, "lockstep has no option --jsn; lockstep --help");
  expect_refusal({"train"}, "CONFIG is required");
  expect_refusal({"train", "x.textproto", "--rezume", "auto"},
                 "train has no option --rezume (did you mean '--resume'?)");
  expect_refusal({"train", "x.textproto", "y.textproto"}, "'y.textproto'");
  expect_refusal({"train", "x.textproto", "--device", "gpu"}, "--device");
  expect_refusal({"config", "chek", "x"}, "config has no command 'chek' (did you mean 'check'?)");
  expect_refusal({"data", "digits"}, "--out is required");
  expect_refusal({"inspect", "x.textproto", "--world", "0"}, "--world");
  expect_refusal({"train", "no-such.textproto"}, "cannot read the config no-such.textproto");
}

TEST(Usage, OverridesNameTheFieldThatWasProbablyMeant) {
  const SmallConfig config;
  expect_refusal({"train", config.path(), "--set", "trainer.sed=2"}, "no field 'sed' (did you mean 'seed'?)");
  // Between options and CONFIG, --set takes one word only.
  expect_refusal({"config", "check", "--set", "trainer.steps=0", config.path()}, "trainer.steps");
}

TEST(Usage, HelpListsTheKeysOfALayoutWhereItIsTaken) {
  for (const char* command : {"train", "eval", "inspect", "profile", "chaos"}) {
    const std::string help = lockstep({command, "--help"}).out;
    EXPECT_THAT(help, HasSubstr("--layout KEY=VALUE,..."));
    EXPECT_THAT(help, HasSubstr("gpipe, 1f1b, interleaved, zero_bubble [1f1b]\n"));
  }
}

TEST(Usage, ALayoutIsOneThingHoweverItIsSaid) {
  const SmallConfig config;
  expect_refusal({"train", config.path(), "--layout", "dp=2", "--set", "parallel.dp=3"},
                 "--set parallel.dp=3: parallel.dp: is 3, but --layout dp=2 replaces it");
  expect_refusal({"train", config.path(), "--layout", "server=2"},
                 "no key 'server' (did you mean 'servers'?)");
  expect_refusal({"config", "check", config.path(), "--set", "parallel.pp=2", "--set", "parallel.sync=PS",
                  "--set", "parallel.mode=ASYNC", "--set", "parallel.reduction=FAST"},
                 "(mode=stale and mode=async with pp above 1) are not available in this version");
}

TEST(Usage, HelpBeginsWithAnExample) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"train"},
                                                          {"eval"},
                                                          {"verify"},
                                                          {"bench"},
                                                          {"inspect"},
                                                          {"generate"},
                                                          {"predict"},
                                                          {"export"},
                                                          {"import"},
                                                          {"config"},
                                                          {"config", "print"},
                                                          {"config", "check"},
                                                          {"data"},
                                                          {"data", "digits"},
                                                          {"doctor"}};
  for (const auto& command : commands) {
    const Ran ran = lockstep(command + std::vector<std::string>{"--help"});
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_THAT(ran.out, StartsWith("Example:\n  "));
    EXPECT_THAT(ran.out, HasSubstr("--help"));
    EXPECT_THAT(ran.out, HasSubstr(command.empty() ? "lockstep train" : "lockstep " + command[0]));
  }
}

TEST(Usage, HelpMayBeACommand) {
  EXPECT_EQ(lockstep({"help"}).out, lockstep({"--help"}).out);
  EXPECT_EQ(lockstep({"help", "config", "print"}).out, lockstep({"config", "print", "--help"}).out);
  EXPECT_EQ(lockstep({"help", "nothing"}).code, 2);
}

TEST(Usage, VersionIsThatOfTheProject) {
  const Ran ran = lockstep({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, StartsWith("lockstep " LOCKSTEP_VERSION ", commit "));
  for (const char* said : {"\ncompiled by ", "\ncomputes on CPUs", "Open MPI", "sums=", "Protocol Buffers "})
    EXPECT_THAT(ran.out, HasSubstr(said));
  EXPECT_EQ(occurrences(ran.out, "\n"), 4);
}

TEST(Usage, AnUnknownOptionOfOneRankStopsAllAndIsPrintedOnce) {
  const SmallConfig config;
  const Ran ran = mpirun({{1, {"train", config.path()}}, {1, {"train", config.path(), "--jsno"}}});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, Mentions("rank 1 ... --jsno ... did you mean '--json'?"));
  EXPECT_EQ(occurrences(ran.err, "lockstep: error: "), 1u) << ran.err;
}

TEST(ConfigCommand, PrintReadsBackAsTheSameRun) {
  const SmallConfig config;
  const Ran printed = lockstep({"config", "print", config.path(), "--set", "trainer.seed=7"});
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("seed: 7"));
  EXPECT_THAT(printed.out, HasSubstr("prefetch_depth: 4"));  // a default
  write_file(config / "again.textproto", printed.out);
  const Ran first = lockstep({"config", "check", config.path(), "--set", "trainer.seed=7", "--json"});
  const Ran again = lockstep({"config", "check", config / "again.textproto", "--json"});
  EXPECT_EQ(Json::parse(again.out)["config_hash"], Json::parse(first.out)["config_hash"]);
}

TEST(ConfigCommand, ExpandWritesLayersWithTheSameMathematics) {
  const SmallConfig config;
  const Ran expanded = lockstep({"config", "print", config.path(), "--expand"});
  ASSERT_EQ(expanded.code, 0) << expanded.err;
  EXPECT_THAT(expanded.out, HasSubstr("name: \"fc2\""));
  EXPECT_THAT(expanded.out, testing::Not(HasSubstr("mlp {")));
  write_file(config / "expanded.textproto", expanded.out);
  const Ran first = lockstep({"config", "check", config.path(), "--json"});
  const Ran again = lockstep({"config", "check", config / "expanded.textproto", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["math_hash"], Json::parse(first.out)["math_hash"]);
}

TEST(Inspect, ShowsModelBatchMemoryAndProvenPrograms) {
  const SmallConfig config;
  const Ran text = lockstep({"inspect", config.path(), "--world", "3"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"fc1", "softmax_cross_entropy", "global batch 24", "optimizer_state", "proven: "})
    EXPECT_THAT(text.out, HasSubstr(part));

  const Ran ran = lockstep({"inspect", config.path(), "--world", "3", "--json"});
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["parameters"], 16 * 8 + 8 + 8 * 3 + 3);
  EXPECT_EQ(json["division"]["leaves"], 4);
  EXPECT_EQ(json["division"]["leaf_samples"], 6);
  EXPECT_EQ(json["layout"], "dp=3");
  EXPECT_EQ(json["proven"], true);
  int64_t sum = 0;
  for (const auto& [category, bytes] : json["memory_bytes"].items())
    if (category != "total") sum += bytes.get<int64_t>();
  EXPECT_EQ(json["memory_bytes"]["total"], sum);
}

// What only the plan of a run shows: most of the servers would own nothing.
TEST(Config, CheckRefusesWhatInspectRefusesInItsWords) {
  const SmallConfig config;
  const std::string layout = "dp=1,sync=ps,servers=64";
  const Ran checked = lockstep({"config", "check", config.path(), "--layout", layout});
  const Ran inspected = lockstep({"inspect", config.path(), "--layout", layout});
  EXPECT_NE(checked.code, 0);
  EXPECT_EQ(checked.code, inspected.code);
  EXPECT_EQ(checked.err, inspected.err);
  EXPECT_EQ(lockstep({"config", "check", config.path(), "--layout", "dp=1,sync=ps,servers=1"}).code, 0);
  // Two workers are needed, and the job may start them.
  const Ran colocated = lockstep({"config", "check", config.path(), "--set",
                                  "parallel={sync: PS servers: 2 placement: COLOCATED bucket_bytes: 64}"});
  EXPECT_EQ(colocated.code, 0) << colocated.err;
}

TEST(Inspect, ShowsWhoHoldsUpdatesSavesAndSendsWhat) {
  const SmallConfig config;
  constexpr int64_t kParameters = 4 * (16 * 8 + 8 + 8 * 3 + 3);
  const auto ranks_of = [&](const std::string& layout, const std::string& wire = "FLOAT32") {
    return Json::parse(lockstep({"inspect", config.path(), "--json", "--several-hosts", "--layout", layout,
                                 "--set", "parallel.wire=" + wire})
                           .out)["ranks"];
  };
  const auto sum = [](const Json& ranks, const char* what) {
    int64_t bytes = 0;
    for (const auto& rank : ranks) bytes += rank[what].get<int64_t>();
    return bytes;
  };
  const Json whole = ranks_of("dp=2"), cut = ranks_of("dp=2,shard=optimizer");
  ASSERT_EQ(whole.size(), 2u);
  ASSERT_EQ(cut.size(), 2u);
  for (const Json& rank : whole) {
    EXPECT_EQ(rank["role"], "worker");
    EXPECT_EQ(rank["updated_bytes"], kParameters);
    EXPECT_EQ(rank["optimizer_state_bytes"], rank["parameter_bytes"]) << "momentum";
  }
  EXPECT_EQ(sum(cut, "updated_bytes"), kParameters) << "each byte by one rank";
  EXPECT_EQ(2 * sum(cut, "optimizer_state_bytes"), sum(whole, "optimizer_state_bytes"));
  EXPECT_EQ(sum(cut, "saved_bytes"), 2 * kParameters) << "with momentum, each byte by one rank";
  EXPECT_EQ(sum(whole, "saved_bytes"), 2 * kParameters);
  EXPECT_GT(whole[0]["wire_bytes_theory"], kParameters)
      << "half of the gradients, half of the sums, and an agreement";
  EXPECT_EQ(ranks_of("dp=1")[0]["wire_bytes_theory"], 0);

  // Of one leaf each: bytes of a gradient in float32 and, with a narrower wire, two more of what travels.
  const Json wide = ranks_of("dp=4"), narrow = ranks_of("dp=4", "BFLOAT16");
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(wide[rank]["gradient_bytes"], 0);
    EXPECT_EQ(2 * narrow[rank]["gradient_bytes"].get<int64_t>(),
              3 * wide[rank]["gradient_bytes"].get<int64_t>());
    EXPECT_LT(narrow[rank]["wire_bytes_theory"], wide[rank]["wire_bytes_theory"]);
  }

  const std::string text = lockstep({"inspect", config.path(), "--layout", "dp=4,shard=optimizer"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("bytes that each rank holds, updates, saves and sends"),
                          HasSubstr("\n  3     worker")));
  const std::string many =
      lockstep({"inspect", config.path(), "--set", "trainer.virtual_replicas=12", "--layout", "dp=12"}).out;
  EXPECT_THAT(many,
              AllOf(HasSubstr("\n  least "), HasSubstr("\n  most "), Not(HasSubstr("\n  3     worker"))));
}

/// Sums within each host first: under REPRODUCIBLE, hosts of so many workers add up as the tree of all does.
TEST(Inspect, PlansSeveralProcessesOnEachOfSeveralHosts) {
  const SmallConfig config;
  const auto inspected = [&](const std::vector<std::string>& more) {
    return lockstep(
        std::vector<std::string>{"inspect", config.path(), "--json", "--set", "trainer.virtual_replicas=4"} +
        more);
  };
  const auto sums = [&](const std::string& layout, const std::string& hosts) {
    const Ran ran = inspected({"--layout", layout, "--hosts", hosts});
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::pair<int64_t, int64_t> bytes;
    const Json answer = Json::parse(ran.out);
    for (const Json& rank : answer["ranks"]) {
      bytes.first += rank["shared_memory_bytes"].get<int64_t>();
      bytes.second += rank["wire_bytes_theory"].get<int64_t>();
    }
    return bytes;
  };
  const auto flat = sums("dp=4", "2"), within = sums("dp=4,aggregate=host", "2"),
             one = sums("dp=4,aggregate=host", "1"), each = sums("dp=4,aggregate=host", "4");
  EXPECT_EQ(flat.first, 0) << "without aggregate=host everything is sent";
  EXPECT_GT(within.first, 0);
  EXPECT_GT(within.second, one.second) << "between hosts";
  EXPECT_LT(within.second, flat.second);
  EXPECT_EQ(each.first, 0) << "nobody shares a host";
  expect_refusal({"inspect", config.path(), "--layout", "dp=2", "--hosts", "3"}, "--hosts 3");
  expect_refusal({"inspect", config.path(), "--layout", "dp=2", "--hosts", "2", "--several-hosts"},
                 "--several-hosts");
}

TEST(Inspect, ShowsTheMemoryOfAWorkerAndOfAServer) {
  const SmallConfig config;
  const auto inspected = [&](const std::string& layout, const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"inspect", config.path(), "--layout", layout} + more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  };
  for (const auto& [rank, first, second] : {std::tuple("0", "memory of rank 0 of 4 (worker), on CPUs\n",
                                                       "memory of rank 2 of 4 (server), on CPUs\n"),
                                            std::tuple("3", "memory of rank 3 of 4 (server), on CPUs\n",
                                                       "memory of rank 0 of 4 (worker), on CPUs\n")}) {
    const std::string text = inspected("dp=2,sync=ps,servers=2", {"--rank", rank, "--memory"});
    EXPECT_THAT(text, testing::StartsWith(first));
    EXPECT_THAT(text, HasSubstr(second));
  }
  const Json json = Json::parse(inspected("dp=2,sync=ps", {"--json"}));
  const Json& server = json["other_role"];
  EXPECT_EQ(server["rank"], 2);
  EXPECT_EQ(server["role"], "server");
  EXPECT_EQ(server["memory_bytes"]["activations"], 0);
  EXPECT_GT(server["memory_bytes"]["optimizer_state"], 0);
  EXPECT_EQ(json["memory_bytes"]["optimizer_state"], 0);
  EXPECT_GT(server["host_memory_bytes"]["total"], 0);
  const std::string both = "dp=2,sync=ps,placement=colocated";
  EXPECT_FALSE(Json::parse(inspected(both, {"--json"})).contains("other_role"));
  EXPECT_THAT(inspected(both, {"--memory"}), testing::StartsWith("memory of rank 0 of 2, on CPUs\n"));
}

TEST(Inspect, TakesAsManyProcessesAsTheLayoutSays) {
  const SmallConfig config;
  const auto layout_of = [&](const std::vector<std::string>& more) {
    return Json::parse(
        lockstep(std::vector<std::string>{"inspect", config.path(), "--json"} + more).out)["layout"];
  };
  EXPECT_EQ(layout_of({}), "dp=1");
  EXPECT_EQ(layout_of({"--layout", "dp=3"}), "dp=3");
  EXPECT_EQ(layout_of({"--set", "parallel.dp=2"}), "dp=2");
  EXPECT_EQ(layout_of({"--layout", "pp=1", "--world", "4"}), "dp=4");
  EXPECT_THAT(lockstep({"inspect", config.path(), "--layout", "dp=3"}).out,
              HasSubstr("layout dp=3: global batch 24"));
  expect_refusal({"inspect", config.path(), "--layout", "dp=3", "--world", "2"},
                 "takes 3 processes, but there are 2");
  EXPECT_EQ(layout_of({"--layout", "pp=2"}), "dp=1,pp=2");
  expect_refusal({"inspect", config.path(), "--layout", "dp=2,pp=2,sync=ps,mode=async", "--set",
                  "parallel.reduction=FAST"},
                 "the nearest that works is 'dp=2,pp=2,sync=ps'");
  expect_refusal({"inspect", config.path(), "--layout", "pp=9"}, "use at most 4");
}

TEST(Inspect, PlansForGpusWithoutOne) {
  const SmallConfig config;
  const Ran ran = lockstep({"inspect", config.path(), "--world", "2", "--device", "cuda"});
  if (ran.code == 69) {  // a build without CUDA
    EXPECT_THAT(ran.err, HasSubstr("-DLOCKSTEP_CUDA=ON"));
    return;
  }
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Mentions("rank 0 ... 2"));
  EXPECT_THAT(ran.out, HasSubstr("checkpoint copy"));
  EXPECT_THAT(ran.out, HasSubstr("proven: "));
  const auto total = [&](const char* device) {
    const Ran json = lockstep({"inspect", config.path(), "--world", "2", "--device", device, "--json"});
    return Json::parse(json.out)["memory_bytes"]["total"].get<int64_t>();
  };
  EXPECT_GT(total("cuda"), total("cpu")) << "products on GPUs have a workspace";
}

TEST(Inspect, PrintsTheProgramOfARank) {
  const SmallConfig config;
  const auto program = [&](const char* rank) {
    return lockstep({"inspect", config.path(), "--world", "2", "--rank", rank, "--program", "step"}).out;
  };
  EXPECT_THAT(program("1"), HasSubstr("update"));
  EXPECT_NE(program("0"), program("1"));
  expect_refusal({"inspect", config.path(), "--world", "2", "--rank", "2"}, "0 to 1");
}

TEST(Inspect, DrawsTheScheduleOfAPipelineThatCannotBeCompiledYet) {
  const SmallConfig config;  // 4 leaves of 6 samples
  const auto drawn = [&](const std::string& layout, const std::vector<std::string>& more = {}) {
    return lockstep(std::vector<std::string>{"inspect", config.path(), "--schedule", "--set",
                                             "trainer.micro_batch=3", "--layout", layout} +
                    more);
  };
  const Ran text = drawn("pp=4,schedule=interleaved");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, Mentions("dp=1,pp=4,schedule=interleaved ... 4 ... 8"));
  EXPECT_THAT(text.out, HasSubstr("\nstage 3   ...0123"));
  EXPECT_THAT(text.out, HasSubstr("\n* interleaved, chunks=2        28.5    15.8 %"));

  const Json json = Json::parse(drawn("dp=2,pp=2,schedule=zero_bubble", {"--json"}).out);
  EXPECT_EQ(json["layout"], "dp=2,pp=2,schedule=zero_bubble");
  EXPECT_EQ(json["stages"], 2);
  EXPECT_EQ(json["micro_batches"], 4) << "of two of the four leaves";
  EXPECT_EQ(json["step"], 13);
  EXPECT_DOUBLE_EQ(json["bubble_fraction_theory"].get<double>(), 1.0 / 13);
  EXPECT_EQ(json["activation_peaks"][1]["kept"], 2);

  expect_refusal({"inspect", config.path(), "--schedule", "--layout", "pp=3,schedule=interleaved"},
                 "4 = 1 x 3 stages + 1; set trainer.micro_batch so that there are 3 or 6");
  expect_refusal({"inspect", config.path(), "--schedule", "--memory"}, "--memory excludes --schedule");
}

TEST(Digits, AreMadeOnceAndNeverReplacedUnasked) {
  const TemporaryDirectory folder;
  const std::vector<std::string> command = {"data",    "digits", "--out",  folder / "d",
                                            "--train", "20",     "--eval", "10"};
  const Ran made = lockstep(command + std::vector<std::string>{"--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(Json::parse(made.out)["train"], 20);
  const Bytes before = read_file(folder / "d/train-images-idx3-ubyte");
  EXPECT_EQ(before.size(), 16 + 20 * 28 * 28u);
  EXPECT_EQ(lockstep(command).code, 0);
  EXPECT_EQ(lockstep(command + std::vector<std::string>{"--seed", "2"}).code, 65);
  EXPECT_EQ(read_file(folder / "d/train-images-idx3-ubyte"), before);
  EXPECT_EQ(lockstep(command + std::vector<std::string>{"--seed", "2", "--force"}).code, 0);
  EXPECT_NE(read_file(folder / "d/train-images-idx3-ubyte"), before);
}

/// One label of two hundred among those of ten classes.
TEST(Usage, ADamagedLabelIsNamedWithItsFile) {
  const SmallConfig folder;
  const std::string data = folder / "digits";
  ASSERT_EQ(lockstep({"data", "digits", "--out", data, "--train", "80", "--eval", "20"}).code, 0);
  std::string labels = read_text_file(data + "/train-labels-idx1-ubyte");
  labels[8 + 17] = static_cast<char>(200);
  write_file(data + "/train-labels-idx1-ubyte", labels);
  const Ran ran = lockstep({"train", LOCKSTEP_CONFIGS "/digits_quickstart.textproto", "--data-dir", data});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err,
              HasSubstr("label 200 of sample 17 in " + data + "/train-labels-idx1-ubyte is not from 0 to 9"));
}

TEST(Usage, APipeAsConfigIsRefusedAndNotWaitedFor) {
  const SmallConfig folder;
  const Ran ran = run_command(
      {"bash", "-c", "mkfifo \"$0\" && exec \"$1\" config check \"$0\"", folder / "pipe", LOCKSTEP_PROGRAM});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("it is not a regular file"));
}

/// Whoever read the messages has gone: the training goes on, and is saved.
TEST(Usage, ATrainingOutlivesTheReaderOfItsMessages) {
  const SmallConfig folder;
  const std::string out = folder / "run";
  const Ran ran =
      run_command({"bash", "-c", "\"$0\" train \"$1\" --out \"$2\" 2> >(exec 0<&-) > \"$2.result\"",
                   LOCKSTEP_PROGRAM, folder.path(), out});
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(std::filesystem::exists(out + "/checkpoints/step-00000012"));
}

TEST(Usage, AResultThatNobodyReadsToItsEndIsNoError) {
  const SmallConfig folder;
  const Ran ran = run_command({"bash", "-c", "set -o pipefail; \"$0\" config print \"$1\" | exec 0<&-",
                               LOCKSTEP_PROGRAM, folder.path()});
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("lockstep: error")));
}

}  // namespace
}  // namespace lockstep::test
