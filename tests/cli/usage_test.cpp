#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
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
