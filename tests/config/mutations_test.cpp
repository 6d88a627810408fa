#include <gtest/gtest.h>

#include <random>

#include "config_testing.h"

namespace lockstep::config {
namespace {

const std::string kPlainModel = R"(model {
  input { name: "image" shape: [4, 4, 1] } input { name: "label" type: INT32 }
  layer { name: "c" conv2d { channels: 2 kernel: 3 padding: 1 } }
  layer { name: "h" block { repeat: 2 layer { name: "a" relu {} } layer { name: "s" input: "^" input: "a" add {} } } }
  layer { name: "f" flatten {} } layer { name: "o" linear { units: 3 } }
  layer { name: "loss" input: "o" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 100 eval_samples: 10 classes: 3 } }
trainer { global_batch: 16 steps: 5 }
optimizer { learning_rate: 0.1 adamw {} schedule { warmup_steps: 2 cosine { minimum: 1e-3 } } }
)";

/// One random damage: a byte changed, a piece removed, doubled or moved, or a number replaced by an extreme
/// one.
void mutate(std::string& text, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  static const std::string pieces[] = {"-1",
                                       "0",
                                       "1e999",
                                       "nan",
                                       "9223372036854775807",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       "<",
                                       ">",
                                       ":",
                                       "^",
                                       "true",
                                       "\\377",
                                       "#",
                                       "layer { block {",
                                       "REPRODUCIBLE",
                                       "0x7f",
                                       "'",
                                       "\n",
                                       std::string(1, '\0'),
                                       "\xff",
                                       "4294967296",
                                       "[1, 2",
                                       "a.b",
                                       "-"};
  const size_t at = below(text.size()), length = std::min(below(12), text.size() - at);
  const std::string piece = text.substr(at, length);
  switch (random() % 5) {
    case 0:
      text.insert(at, pieces[below(std::size(pieces))]);
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(below(text.size()), piece);
      break;
    case 3:
      if (!text.empty()) text[at] = static_cast<char>(random());
      break;
    default: {
      const auto digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text.replace(digit, 1, pieces[below(6)]);
    }
  }
}

/// Anything but a ConfigError or success escapes and fails the test.
bool reads(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_run_config(text, "c", overrides);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

TEST(Mutations, OfConfigsAreReadOrRefused) {
  std::mt19937 random(1);
  int good = 0;
  for (const auto& original : {kSmallConfig, kSmallGpt, kPlainModel}) {
    ASSERT_TRUE(reads(original)) << refusal(original);
    for (int round = 0; round < 1000; ++round) {
      std::string text = original;
      for (uint32_t i = random() % 4 + 1; i > 0; --i) mutate(text, random);
      good += reads(text);
    }
  }
  EXPECT_GT(good, 50) << "mutations that break everything test the parser alone";
  EXPECT_LT(good, 2000);
}

TEST(Mutations, OfOverridesAreReadOrRefused) {
  std::mt19937 random(2);
  for (const std::string original :
       {"trainer.steps=7", "model.layer[1].block.layer[0].gelu={}", "data.directory='x'",
        "model.input[0].shape=[4, 4, 2]", "optimizer.adamw={ beta2: 0.9 }"}) {
    ASSERT_TRUE(reads(kPlainModel, {original})) << refusal(kPlainModel, {original});
    for (int round = 0; round < 200; ++round) {
      std::string assignment = original;
      for (uint32_t i = random() % 2 + 1; i > 0; --i) mutate(assignment, random);
      reads(kPlainModel, {assignment});
    }
  }
}

TEST(Mutations, EveryPrefixOfAConfigIsReadOrRefused) {
  for (size_t length = 0; length < kPlainModel.size(); ++length)
    EXPECT_FALSE(reads(kPlainModel.substr(0, length)) && length < kPlainModel.rfind('}')) << length;
}

}  // namespace
}  // namespace lockstep::config
