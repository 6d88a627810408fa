#include <fmt/format.h>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

/// A small language model in `name`, trained on a text of eleven characters.
std::string trained_on_text(const SmallConfig& config, const std::string& model = "llama") {
  std::string text;
  for (int i = 0; i < 400; ++i) text.push_back(static_cast<char>('a' + i * i % 11));
  write_file(config / "text", text);
  const std::string run = config / model;
  const Ran ran =
      lockstep({"train", config.path(), "--out", run, "--quiet", "--data-dir", config / "", "--set",
                "model={" + model + " {vocabulary: 6 context: 6 layers: 1 heads: 2 width: 8}}", "--set",
                "data={text {file: \"text\" context: 6 train_fraction: 0.5}}"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  return run;
}

TEST(Generate, WritesTheSameTextFromTheSameSeedAndAnotherFromAnother) {
  const SmallConfig config;
  const std::string run = trained_on_text(config);
  const auto generate = [&](const std::string& seed, const std::string& threads) {
    return lockstep({"generate", "--checkpoint", run, "--prompt", "ab", "--tokens", "50", "--seed", seed,
                     "--threads", threads});
  };
  const Ran once = generate("1", "1");
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_EQ(once.out.size(), 2 + 50 + 1u);
  EXPECT_EQ(once.out.substr(0, 2), "ab");
  EXPECT_EQ(generate("1", "3").out, once.out);
  EXPECT_NE(generate("2", "1").out, once.out);
}

TEST(Generate, WritesSamplesAsJson) {
  const SmallConfig config;
  const std::string run = trained_on_text(config, "gpt");
  const Ran ran = lockstep({"generate", "--checkpoint", run + "/checkpoints", "--prompt", "ab", "--tokens",
                            "20", "--samples", "2", "--top-k", "3", "--top-p", "0.9", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const size_t end = ran.out.find('\n');
  const Json first = Json::parse(ran.out.substr(0, end)), second = Json::parse(ran.out.substr(end + 1));
  EXPECT_EQ(first["sample"], 0);
  EXPECT_EQ(second["sample"], 1);
  EXPECT_EQ(first["step"], 12);
  EXPECT_EQ(first["prompt"], "ab");
  EXPECT_EQ(first["text"].get<std::string>().size(), 20u);
  EXPECT_NE(first["text"], second["text"]);
}

TEST(Generate, RefusesWhatItCannotContinue) {
  const SmallConfig config;
  const std::string run = trained_on_text(config);
  const auto refusal = [&](const std::string& checkpoint, std::vector<std::string> more, int code) {
    const Ran ran =
        lockstep(std::vector<std::string>{"generate", "--checkpoint", checkpoint, "--tokens", "5"} + more);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out.find('\n'), std::string::npos) << ran.out;
    return ran.err;
  };
  EXPECT_THAT(refusal(run, {"--prompt", "aZ"}, 65), HasSubstr("0x5a"));
  EXPECT_THAT(refusal(run, {"--prompt", ""}, 2), HasSubstr("prompt"));
  EXPECT_THAT(refusal(run, {"--prompt", "a", "--temperature", "-1"}, 2), HasSubstr("temperature"));
  EXPECT_THAT(refusal(run, {"--prompt", "a", "--top-p", "0"}, 2), HasSubstr("top_p"));
  EXPECT_THAT(refusal(run, {"--prompt", "a", "--set", "model.llama.layers=2"}, 2), HasSubstr("layers.1"));
  refusal(config / "nothing", {"--prompt", "a"}, 2);
  // A classifier.
  const Ran trained = lockstep({"train", config.path(), "--out", config / "mlp", "--quiet"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  refusal(config / "mlp", {"--prompt", "a"}, 2);
}

}  // namespace
}  // namespace lockstep::test
