#include <fmt/format.h>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

/// A training on a text of seven characters, which writes every five steps and at the end.
class Texts : public testing::Test {
 protected:
  Texts() {
    std::string text;
    for (int i = 0; i < 400; ++i) text.push_back(static_cast<char>('a' + i * i % 11));
    write_file(config_ / "text", text);
  }

  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    return std::vector<std::string>{"train",
                                    config_.path(),
                                    "--out",
                                    config_ / name,
                                    "--json",
                                    "--data-dir",
                                    config_ / "",
                                    "--set",
                                    "model={gpt {vocabulary: 6 context: 6 layers: 2 heads: 2 width: 8}}",
                                    "--set",
                                    "data={text {file: \"text\" context: 6 train_fraction: 0.5}}"} +
           more;
  }
  /// The hash of the parameters that were learned.
  std::string train(const std::string& name, int ranks, const std::vector<std::string>& more) const {
    const Ran ran = ranks == 1 ? lockstep(command(name, more)) : mpirun(ranks, command(name, more));
    return only_json(ran)["params_hash"];
  }
  /// Step and text of each.
  std::vector<std::pair<int64_t, std::string>> texts_of(const std::string& name) const {
    std::vector<std::pair<int64_t, std::string>> texts;
    for (const Json& line : metrics_of(config_ / name))
      if (line.contains("text")) texts.emplace_back(line["step"], line["text"]);
    return texts;
  }

  const SmallConfig config_;
  const std::vector<std::string> asked_{"--set", "trainer.sample={every_steps: 5 prompt: \"ab\" tokens: 20}"};
};

TEST_F(Texts, ChangeNoBitOfTheTrainingAndAreAlikeInAllLayouts) {
  const std::string alone = train("alone", 1, {});
  EXPECT_TRUE(texts_of("alone").empty());
  EXPECT_EQ(train("one", 1, asked_), alone);
  const auto texts = texts_of("one");
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0].first, 5);
  EXPECT_EQ(texts[1].first, 10);
  EXPECT_EQ(texts[2].first, 12);
  for (const auto& [step, text] : texts) {
    EXPECT_EQ(text.size(), 22u);
    EXPECT_EQ(text.substr(0, 2), "ab");
  }
  EXPECT_NE(texts[0].second, texts[2].second);
  for (const auto& [layout, ranks] : std::vector<std::pair<std::string, int>>{
           {"dp=2", 2}, {"pp=2", 2}, {"dp=2,shard=optimizer", 2}, {"dp=2,sync=ps", 3}}) {
    const std::string name = fmt::format("in {}", layout);
    EXPECT_EQ(train(name, ranks, asked_ + std::vector<std::string>{"--layout", layout}), alone) << layout;
    EXPECT_EQ(texts_of(name), texts) << layout;
  }
}

TEST_F(Texts, AreWhatGenerateWritesWithTheSameParameters) {
  train("run", 1, asked_);
  const Json generated = only_json(lockstep({"generate", "--checkpoint", config_ / "run", "--prompt", "ab",
                                             "--tokens", "20", "--seed", "1", "--json"}));
  EXPECT_EQ(generated["step"], 12);
  EXPECT_EQ("ab" + generated["text"].get<std::string>(), texts_of("run").back().second);
}

TEST_F(Texts, AreInTheLogAndOnThePage) {
  auto words = command("run", asked_);
  words.erase(std::ranges::find(words, "--json"));
  const Ran ran = lockstep(words);
  EXPECT_EQ(ran.code, 0) << ran.err;
  const std::string page = read_text_file(config_ / "run" + "/report.html");
  for (const auto& [step, text] : texts_of("run")) {
    EXPECT_THAT(ran.err, HasSubstr(text));
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST_F(Texts, GoOnWhereARunResumes) {
  const std::string whole = train("whole", 1, asked_);
  const Ran stopped = lockstep(command("run", asked_ + std::vector<std::string>{"--stop-after", "7"}));
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_EQ(train("run", 1, asked_ + std::vector<std::string>{"--resume", "auto"}), whole);
  EXPECT_EQ(texts_of("run"), texts_of("whole"));
  // It is no part of the mathematics, so a resumed run may write something else.
  train("other", 1, {"--set", "trainer.steps=6"});
  train("other", 1,
        asked_ + std::vector<std::string>{"--resume", "auto", "--set", "trainer.steps=12",
                                          "--allow-config-change"});
  EXPECT_EQ(texts_of("other").size(), 2u);
}

TEST_F(Texts, RefuseWhatCannotBeWritten) {
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(command("refused", more));
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("trainer.sample"));
    return ran.err;
  };
  EXPECT_THAT(refusal({"--set", "trainer.sample={every_steps: 5 prompt: \"aZ\"}"}), HasSubstr("0x5a"));
  EXPECT_THAT(refusal({"--set", "trainer.sample={every_steps: 5 prompt: \"\"}"}), HasSubstr("prompt"));
  EXPECT_THAT(refusal({"--set", "trainer.sample={prompt: \"a\"}"}), HasSubstr("every_steps"));
  // A classifier.
  const Ran ran = lockstep(std::vector<std::string>{"train", config_.path()} + asked_);
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("trainer.sample"));
  const Ran both = mpirun(2, command("refused", {"--set", "trainer.sample={every_steps: 5 prompt: \"aZ\"}"}));
  EXPECT_EQ(both.code, 2) << both.err;
  const Ran stale = mpirun(
      2, command("refused", asked_ + std::vector<std::string>{"--layout", "dp=2,sync=ps,mode=stale,bound=1",
                                                              "--set", "parallel.reduction=FAST"}));
  EXPECT_EQ(stale.code, 2) << stale.err;
  EXPECT_THAT(stale.err, HasSubstr("trainer.sample"));
}

}  // namespace
}  // namespace lockstep::test
