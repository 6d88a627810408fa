#include <fmt/format.h>

#include <cmath>

#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Eval, GivesTheTrainingsLastEvaluationOnAnyNumberOfRanks) {
  const SmallConfig config;
  const Json trained = only_json(lockstep({"train", config.path(), "--out", config / "a", "--json"}));
  const std::vector<std::string> command = {"eval",       config.path(), "--checkpoint",
                                            config / "a", "--json",      "--quiet"};
  const Ran one = lockstep(command);
  EXPECT_EQ(one.err, "");
  for (const auto& [json, layout] :
       {std::pair(only_json(one), "dp=1"),
        std::pair(only_json(mpirun(3, command + std::vector<std::string>{"--layout", "dp=3"})), "dp=3")}) {
    EXPECT_EQ(json["layout"], layout);
    EXPECT_EQ(json["step"], 12);
    EXPECT_EQ(json["eval_samples"], 50);
    for (const char* field : {"eval_loss", "eval_accuracy", "params_hash"})
      EXPECT_EQ(json[field], trained[field]) << field;
  }
  EXPECT_EQ(lockstep({"eval", config.path(), "--checkpoint", config / "b"}).code, 65);
}

TEST(Eval, TakesTheConfigThatTheRunHasKept) {
  const SmallConfig config;
  const Json trained = only_json(mpirun(2, {"train", config.path(), "--out", config / "a", "--json"}));
  for (const std::string& checkpoint :
       {config / "a", config / "a/", config / "a/checkpoints/step-00000012", config / "a/checkpoints"}) {
    const Ran ran = lockstep({"eval", "--checkpoint", checkpoint, "--json"});
    EXPECT_THAT(ran.err, HasSubstr("evaluating step 12 of ")) << checkpoint;
    const Json json = Json::parse(ran.out);
    EXPECT_EQ(json["eval_loss"], trained["eval_loss"]) << checkpoint;
    EXPECT_EQ(json["layout"], "dp=1");
    EXPECT_FALSE(json.contains("perplexity")) << "of a classifier";
  }
  const Ran nowhere = lockstep({"eval", "--checkpoint", config / "b"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("config.effective.textproto"));
}

TEST(Eval, TellsThePerplexityOfLanguageModels) {
  const SmallConfig config;
  const std::vector<std::string> gpt = {
      "--set", "model={gpt {vocabulary: 11 context: 6 layers: 1 heads: 1 width: 8}}", "--set",
      "data={synthetic {samples: 48 eval_samples: 24 classes: 11}}"};
  const Json trained = only_json(
      lockstep(std::vector<std::string>{"train", config.path(), "--json", "--out", config / "a"} + gpt));
  const Json json = only_json(lockstep({"eval", "--checkpoint", config / "a", "--json", "--quiet"}));
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["eval_loss"].get<double>()), 1e-9);
  EXPECT_GT(json["eval_accuracy"], 0);
  for (const char* field : {"eval_loss", "perplexity", "eval_accuracy"})
    EXPECT_EQ(trained[field], json[field]);
  // Of smoothed labels the loss has no perplexity.
  const Json smoothed =
      only_json(lockstep(std::vector<std::string>{"train", config.path(), "--json", "--out", config / "b"} +
                         gpt + std::vector<std::string>{"--set", "model.gpt.label_smoothing=0.1"}));
  EXPECT_FALSE(smoothed.contains("perplexity"));
  EXPECT_TRUE(smoothed.contains("eval_loss"));
  EXPECT_FALSE(only_json(lockstep({"eval", "--checkpoint", config / "b", "--json", "--quiet"}))
                   .contains("perplexity"));
}

TEST(Eval, TakesTheConfigOfATrainingWhoseWorkersDidNotWait) {
  const SmallConfig config;
  const Json trained = only_json(mpirun(
      2, {"train", config.path(), "--layout", "dp=1,sync=ps,mode=async", "--json", "--out", config / "a",
          "--set", "model={lenet {image: [16, 16, 1] classes: 3 batch_norm: true}}", "--set",
          "parallel={reduction: FAST async_learning_rate: DIVIDED_BY_ROOT async_statistics: "
          "EXPONENTIAL_BY_PUSH server_threads: 2}"}));
  const Json json = only_json(lockstep({"eval", "--checkpoint", config / "a", "--json", "--quiet"}));
  EXPECT_EQ(json["params_hash"], trained["params_hash"]);
  EXPECT_EQ(json["eval_samples"], 50);
}

/// The program, started in `folder`.
Ran lockstep_in(const std::string& folder, const std::vector<std::string>& arguments) {
  return run_command(std::vector<std::string>{"env", "-C", folder, LOCKSTEP_PROGRAM} + arguments);
}

TEST(Eval, FindsTheDataOfARunFromAnyFolder) {
  const SmallConfig config;
  const std::string project = config / "project", run = project + "/runs/a",
                    kept = run + "/config.effective.textproto";
  fs::create_directories(project + "/data");
  std::string text;
  for (int i = 0; i < 400; ++i) text.push_back(static_cast<char>('a' + i * i % 11));
  write_file(project + "/data/text", text);
  const std::vector<std::string> train = {
      "train",
      config.path(),
      "--json",
      "--data-dir",
      "data",
      "--set",
      "model={gpt {vocabulary: 11 context: 6 layers: 1 heads: 1 width: 8}}",
      "--set",
      "data={text {file: \"text\" context: 6 train_fraction: 0.5}}"};
  const Json whole = only_json(lockstep_in(project, train));
  const Json half = only_json(
      lockstep_in(project, train + std::vector<std::string>{"--out", "runs/a", "--stop-after", "6"}));
  EXPECT_EQ(half["steps"], 6);

  const Json elsewhere = only_json(lockstep_in("/", {"eval", "--checkpoint", run, "--json"}));
  EXPECT_EQ(only_json(lockstep_in(run, {"eval", "--checkpoint", ".", "--json"})), elsewhere);
  const Json resumed =
      only_json(lockstep_in("/", {"train", kept, "--resume", run, "--out", config / "b", "--json"}));
  EXPECT_EQ(resumed["params_hash"], whole["params_hash"]);
  EXPECT_EQ(lockstep_in("/", {"verify", kept, "--steps", "1", "--layouts", "dp=1; dp=2"}).code, 0);

  // Moved as a whole it is found from where it stands as it did before, or by its name.
  fs::rename(project, config / "moved");
  const std::string moved = config / "moved/runs/a";
  EXPECT_EQ(only_json(lockstep_in(config / "moved", {"eval", "--checkpoint", "runs/a", "--json"})),
            elsewhere);
  const std::vector<std::string> eval = {"eval", "--checkpoint", moved, "--json"};
  const Ran lost = lockstep_in("/", eval);
  EXPECT_EQ(lost.code, 74);
  EXPECT_THAT(lost.err, testing::AllOf(HasSubstr(project + "/data/text"), HasSubstr("--data-dir")));
  EXPECT_EQ(
      only_json(lockstep_in(config / "moved/runs", eval + std::vector<std::string>{"--data-dir", "../data"})),
      elsewhere);
}

TEST(Eval, ReadsTextsByTheTokenizerThatTheModelLearnedWith) {
  const SmallConfig config;
  std::string text;
  for (int i = 0; i < 1500; ++i) text += fmt::format("the cat {} sat on the mat\n", i % 17);
  write_file(config / "text", text);
  write_file(config / "other", text.substr(0, 500) + "\xff?");
  const Json made = only_json(lockstep(
      {"data", "tokens", config / "text", "--out", config / "tokens", "--vocabulary", "280", "--json"}));
  EXPECT_EQ(made["token_bytes"], 2);
  const std::string vocabulary = std::to_string(made["vocabulary"].get<int>());
  const std::vector<std::string> gpt = {
      "--set",      "model={gpt {vocabulary: " + vocabulary + " context: 6 layers: 1 heads: 1 width: 8}}",
      "--set",      "data={tokens {files: \"tokens/*.bin\" eval_fraction: 0.25}}",
      "--data-dir", config / ""};
  const Json trained = only_json(
      lockstep(std::vector<std::string>{"train", config.path(), "--json", "--out", config / "a"} + gpt));
  const std::vector<std::string> eval = {"eval", "--checkpoint", config / "a", "--json", "--quiet"};
  EXPECT_EQ(only_json(lockstep(eval))["eval_loss"], trained["eval_loss"]);
  EXPECT_TRUE(fs::exists(config / "a/checkpoints/step-00000012/tokenizer.json"));
  const auto other = std::vector<std::string>{
      "--set", "data={text {file: \"" + (config / "other") + "\" train_fraction: 0}}"};
  EXPECT_GT(only_json(lockstep(eval + other))["eval_samples"], 5);

  // Tokens of nobody knows what.
  fs::remove(config / "tokens/tokenizer.json");
  const Ran refused = lockstep(eval);
  EXPECT_EQ(refused.code, 65);
  EXPECT_THAT(refused.err, HasSubstr("tokenizer.json"));
  const std::vector<std::string> stated = {
      "--set", "data.tokens.tokenizer=" + (config / "a/checkpoints/step-00000012/tokenizer.json")};
  EXPECT_EQ(only_json(lockstep(eval + stated))["eval_loss"], trained["eval_loss"]);
}

TEST(Eval, ReadsTablesByTheColumnsThatTheModelLearnedWith) {
  const SmallConfig config;
  std::string rows = "x,color,class\n";
  for (int i = 0; i < 60; ++i)
    rows += fmt::format("{},{},{}\n", i * i % 13, i % 3 == 0 ? "red" : "blue", i % 3 == 0 ? "a" : "b");
  write_file(config / "rows.csv", rows + "1,red\n");
  write_file(config / "other.csv", std::string("class,x,color\na,3,red\nb,100,green\n"));
  const std::vector<std::string> table = {
      "--set",
      "model={input {name: \"features\" shape: 3} input {name: \"label\" type: INT32} layer {name: \"fc\" "
      "input: "
      "\"features\" linear {units: 2}} layer {name: \"loss\" input: [\"fc\", \"label\"] "
      "softmax_cross_entropy {}}}",
      "--set",
      "data={table {files: \"rows.csv\" target: \"class\" eval_fraction: 0.2}}",
      "--data-dir",
      config / ""};
  const auto train = [&](const std::vector<std::string>& more) {
    return std::vector<std::string>{"train", config.path(), "--json"} + table + more;
  };
  const Ran damaged = lockstep(train({}));
  EXPECT_EQ(damaged.code, 65);
  EXPECT_THAT(damaged.err, HasSubstr("line 62"));
  const std::vector<std::string> skip = {"--set", "data.on_damage=SKIP", "--out", config / "a"};
  const Json trained = only_json(lockstep(train(skip)));
  const Json two = only_json(mpirun(2, train({"--set", "data.on_damage=SKIP"})));
  EXPECT_EQ(two["params_hash"], trained["params_hash"]);
  const std::vector<std::string> eval = {"eval", "--checkpoint", config / "a", "--json", "--quiet"};
  EXPECT_EQ(only_json(lockstep(eval))["eval_loss"], trained["eval_loss"]);
  const Json other =
      only_json(lockstep(eval + std::vector<std::string>{"--set", "data.table.files=[\"other.csv\"]", "--set",
                                                         "data.table.eval_fraction=1"}));
  EXPECT_EQ(other["eval_samples"], 2);
}

TEST(Eval, ReadsLinesOfClasses) {
  const SmallConfig config;
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += i % 2 ? "long\tabcdef\n" : "short\tab\n";
  write_file(config / "lines.tsv", lines);
  const std::vector<std::string> data = {
      "--set",
      "model={input {name: \"mask\" shape: 6} input {name: \"label\" type: INT32} layer {name: \"fc\" input: "
      "\"mask\" "
      "linear {units: 2}} layer {name: \"loss\" input: [\"fc\", \"label\"] softmax_cross_entropy {}}}",
      "--set",
      "data={lines {files: \"lines.tsv\" length: 6 eval_fraction: 0.2}}",
      "--data-dir",
      config / ""};
  const Json trained = only_json(
      lockstep(std::vector<std::string>{"train", config.path(), "--json", "--out", config / "a"} + data));
  EXPECT_EQ(trained["eval_accuracy"], 1);
  EXPECT_EQ(only_json(lockstep({"eval", "--checkpoint", config / "a", "--json", "--quiet"}))["eval_loss"],
            trained["eval_loss"]);
}

TEST(Eval, ReadsTextsByTheModelsCharacters) {
  const SmallConfig config;
  std::string text, other;
  for (int i = 0; i < 400; ++i) {
    text.push_back(static_cast<char>('a' + i * i % 11));
    other.push_back(text.back() == 'e' ? '#' : text.back());
  }
  write_file(config / "text", text);
  write_file(config / "other", other);
  const std::vector<std::string> gpt = {
      "--set", "model={gpt {vocabulary: 11 context: 6 layers: 1 heads: 1 width: 8}}"};
  const auto text_of = [&](const std::string& name) {
    return std::vector<std::string>{"--set", "data={text {file: \"" + (config / name) + "\"}}"};
  };
  ASSERT_EQ(lockstep(std::vector<std::string>{"train", config.path(), "--out", config / "a"} + gpt +
                     text_of("text"))
                .code,
            0);
  const std::vector<std::string> eval = {"eval", "--checkpoint", config / "a"};
  EXPECT_EQ(lockstep(eval).code, 0);
  const Ran refused = lockstep(eval + text_of("other"));
  EXPECT_EQ(refused.code, 65);
  EXPECT_THAT(refused.err, HasSubstr("'#'"));
  const Ran another = lockstep(eval + std::vector<std::string>{"--set", "model.gpt.vocabulary=9"});
  EXPECT_EQ(another.code, 2);
  EXPECT_THAT(another.err, HasSubstr("\n  model."));
  // Some of them are enough, and nothing of what trained is needed.
  write_file(config / "some", text.substr(0, 3) + "aa" + text.substr(0, 3));
  fs::remove(config / "text");
  const Json some = only_json(lockstep(
      eval + text_of("some") + std::vector<std::string>{"--set", "data.text.train_fraction=0", "--json"}));
  EXPECT_EQ(some["eval_samples"], 2);
}

TEST(Eval, NeedsNoImagesToTrainOn) {
  const SmallConfig config;
  ASSERT_EQ(lockstep({"data", "digits", "--out", config / "digits", "--train", "40", "--eval", "20"}).code,
            0);
  const std::string data =
      "data={idx {train_images: \"train-images-idx3-ubyte\" train_labels: \"train-labels-idx1-ubyte\" "
      "eval_images: \"eval-images-idx3-ubyte\" eval_labels: \"eval-labels-idx1-ubyte\"}}";
  const Json trained =
      only_json(lockstep({"train", config.path(), "--set", data, "--set",
                          "model={mlp {image: [28, 28, 1] hidden: 8 classes: 10}}", "--data-dir",
                          config / "digits", "--out", config / "a", "--json"}));
  fs::remove(config / "digits/train-images-idx3-ubyte");
  fs::remove(config / "digits/train-labels-idx1-ubyte");
  const Json json = only_json(
      lockstep({"eval", "--checkpoint", config / "a", "--data-dir", config / "digits", "--json", "--quiet"}));
  EXPECT_EQ(json["eval_loss"], trained["eval_loss"]);
}

TEST(Eval, TakesOtherDataAndElementTypesAndRefusesAnotherModel) {
  const SmallConfig config;
  ASSERT_EQ(lockstep({"train", config.path(), "--out", config / "a"}).code, 0);
  const auto eval = [&](const std::vector<std::string>& more) {
    return lockstep(std::vector<std::string>{"eval", "--checkpoint", config / "a", "--json", "--quiet"} +
                    more);
  };
  const Json plain = only_json(eval({}));
  const Json other = only_json(eval({"--set", "data.synthetic.eval_samples=90"}));
  EXPECT_EQ(other["eval_samples"], 90);
  EXPECT_EQ(other["params_hash"], plain["params_hash"]);
  const Json narrow = only_json(eval({"--set", "precision.compute=BFLOAT16"}));
  EXPECT_NE(narrow["eval_loss"], plain["eval_loss"]);
  EXPECT_NEAR(narrow["eval_loss"].get<double>(), plain["eval_loss"].get<double>(), 0.02);
  EXPECT_EQ(only_json(eval(
                {"--set", "optimizer={learning_rate: 1 adam {}}", "--set", "trainer.seed=5"}))["eval_loss"],
            plain["eval_loss"]);
  const Ran refused = eval({"--set", "model.mlp.hidden=[9]"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("model.layer.fc1:"));
}

}  // namespace
}  // namespace lockstep::test
