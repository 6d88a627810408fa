// Models whose attention has a mask of lengths, or sees documents that are packed into one sample.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/own_samples.h"
#include "data/test_files.h"
#include "lockstep/data.h"
#include "train/session_ranks.h"

namespace lockstep::train {
namespace {

std::vector<double> losses_of(const std::vector<StepRecord>& records) {
  std::vector<double> losses;
  for (const StepRecord& record : records) losses.push_back(record.loss);
  return losses;
}

/// A transformer that classifies texts of at most 24 bytes, padded to `length`.
std::vector<double> losses_of_classifier(const std::string& folder, int length, const std::string& mask) {
  const auto config = config::parse_run_config(fmt::format(R"(
format_version: 1
model {{
  input {{ name: "tokens" shape: [{0}] type: INT32 }}
  input {{ name: "mask" shape: [{0}] }}
  input {{ name: "label" type: INT32 }}
  layer {{ name: "wte" input: "tokens" embedding {{ vocabulary: 256 width: 16 }} }}
  layer {{ name: "wpe" position_embedding {{ positions: 64 init_std: 0.3 }} }}
  layer {{
    name: "h"
    block {{
      repeat: 2
      layer {{ name: "norm" layer_norm {{}} }}
      layer {{ name: "qkv" linear {{ units: 48 init_std: 0.5 }} }}
      layer {{ name: "core" input: ["qkv"{1}] attention {{ heads: 4 causal: false }} }}
      layer {{ name: "out" linear {{ units: 16 init_std: 0.5 }} }}
      layer {{ name: "sum" input: ["out", "^"] add {{}} }}
    }}
  }}
  layer {{ name: "pool" input: ["h", "mask"] sequence_pool {{}} }}
  layer {{ name: "head" linear {{ units: 2 init_std: 0.5 }} }}
  layer {{ name: "loss" input: ["head", "label"] softmax_cross_entropy {{}} }}
}}
data {{ lines {{ files: "texts.tsv" eval_files: "eval.tsv" }} directory: "{2}" }}
trainer {{ global_batch: 4 steps: 6 seed: 3 eval_every_steps: 3 check_every_steps: 0 }}
optimizer {{ learning_rate: 0.05 sgd {{ momentum: 0.9 }} }}
)",
                                                           length, mask, folder),
                                               "attention_marks_test", {});
  return losses_of(train_sessions(config, "dp=1")[0].records);
}

TEST(AttentionMarks, PaddingDoesNotChangeAClassifier) {
  const test::TemporaryDirectory folder;
  test::write_file(folder / "texts.tsv",
                   "good\ta b c\nbad\tnot at all\ngood\tyes\nbad\tno, never, I say\ngood\tx\n"
                   "bad\ttwenty-four characters.\ngood\tof course\nbad\tnone of it\n");
  test::write_file(folder / "eval.tsv", "good\tof course not\nbad\tnever\n");
  const auto shorter = losses_of_classifier(folder.path(), 32, ", \"mask\"");
  ASSERT_EQ(shorter.size(), 6u);
  EXPECT_GT(std::abs(shorter[5] - shorter[0]), 0.05) << "it learns";
  const auto longer = losses_of_classifier(folder.path(), 64, ", \"mask\"");
  EXPECT_EQ(longer[0], shorter[0]);
  // Gradients of weights sum over more rows of zeros, so perhaps in another order.
  for (size_t i = 1; i < shorter.size(); ++i) EXPECT_NEAR(longer[i], shorter[i], 1e-6) << i;
  // Without the mask, padding is seen.
  EXPECT_GT(std::abs(losses_of_classifier(folder.path(), 64, "")[0] -
                     losses_of_classifier(folder.path(), 32, "")[0]),
            1e-4);
}

constexpr int kPacked = 30, kAlone = 10;
constexpr int kLengths[] = {5, 9, 10};

/// Documents of a language model: packed into a sample, or each in one that is padded. Both have as many
/// positions altogether.
std::vector<double> losses_of_documents(bool packed, bool told) {
  std::vector<int32_t> tokens, labels, documents;
  uint32_t state = 1;
  for (int d = 0; d < 3; ++d) {
    int32_t token = 0;
    for (int i = 0; i < kLengths[d]; ++i) {
      tokens.push_back(token);
      token = static_cast<int32_t>((state = state * 1664525u + 1013904223u) >> 24) % 7;
      labels.push_back(token);
      documents.push_back(d);
    }
    const size_t end =
        packed ? (d < 2 ? tokens.size() : size_t{kPacked}) : size_t{kAlone} * static_cast<size_t>(d + 1);
    tokens.resize(end, 3);
    labels.resize(end, -1);
    documents.resize(end, -1);
  }
  const int context = packed ? kPacked : kAlone;
  const Samples samples = Samples::in_memory(
      {{"tokens", {context}, tokens}, {"label", {context}, labels}, {"documents", {context}, documents}});
  const auto config = config::parse_run_config(
      fmt::format(R"(
format_version: 1
model {{
  input {{ name: "tokens" shape: [{0}] type: INT32 }}
  {1}
  input {{ name: "label" shape: [{0}] type: INT32 }}
  layer {{ name: "wte" input: "tokens" embedding {{ vocabulary: 7 width: 16 init_std: 0.5 }} }}
  layer {{
    name: "h"
    block {{
      repeat: 2
      layer {{ name: "norm" rms_norm {{}} }}
      layer {{ name: "qkv" linear {{ units: 32 init_std: 0.4 }} }}
      layer {{ name: "turned" rotary_embedding {{ head_size: 4 heads: 6 }} }}
      layer {{ name: "core" input: ["turned"{2}] attention {{ heads: 4 key_value_heads: 2 }} }}
      layer {{ name: "out" linear {{ units: 16 init_std: 0.4 }} }}
      layer {{ name: "sum" input: ["out", "^"] add {{}} }}
    }}
  }}
  layer {{ name: "head" linear {{ units: 7 init_std: 0.3 }} }}
  layer {{ name: "loss" input: ["head", "label"] softmax_cross_entropy {{}} }}
}}
trainer {{ global_batch: {3} virtual_replicas: 1 steps: 10 seed: 3 eval_every_steps: 5 check_every_steps: 0 }}
optimizer {{ learning_rate: 0.1 sgd {{ momentum: 0.5 }} }}
)",
                  context,
                  told ? fmt::format("input {{ name: \"documents\" shape: [{}] type: INT32 }}", context) : "",
                  told ? ", \"documents\"" : "", packed ? 1 : 3),
      "attention_marks_test", {}, {},
      {.samples = {.train = SamplesAccess::dataset_of(samples), .eval = SamplesAccess::dataset_of(samples)}});
  return losses_of(train_sessions(config, "dp=1")[0].records);
}

TEST(AttentionMarks, PackedDocumentsTrainAsDocumentsOfTheirOwn) {
  const auto alone = losses_of_documents(false, false), packed = losses_of_documents(true, true);
  ASSERT_EQ(packed.size(), 10u);
  EXPECT_LT(alone[9], alone[0] - 0.1) << "it learns";
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(packed[i], alone[i], 1e-5) << i;
  EXPECT_GT(std::abs(losses_of_documents(true, false)[0] - alone[0]), 1e-3)
      << "documents that see each other";
}

TEST(AttentionMarks, DocumentsTrainToTheSameBitsOnEveryLayout) {
  const auto config = [](const char* parallel) {
    return config::parse_run_config(fmt::format(R"(
format_version: 1
model {{
  input {{ name: "tokens" shape: [20] type: INT32 }}
  input {{ name: "documents" shape: [20] type: INT32 }}
  input {{ name: "label" shape: [20] type: INT32 }}
  layer {{ name: "wte" input: "tokens" embedding {{ vocabulary: 5 width: 8 init_std: 0.5 }} }}
  layer {{
    name: "h"
    block {{
      repeat: 2
      layer {{ name: "qkv" linear {{ units: 24 init_std: 0.5 }} }}
      layer {{ name: "core" input: ["qkv", "documents"] attention {{ heads: 2 dropout: 0.2 }} }}
      layer {{ name: "out" linear {{ units: 8 init_std: 0.5 }} }}
      layer {{ name: "sum" input: ["out", "^"] add {{}} }}
    }}
  }}
  layer {{ name: "head" linear {{ units: 5 }} }}
  layer {{ name: "loss" input: ["head", "label"] softmax_cross_entropy {{}} }}
}}
data {{ synthetic {{ samples: 32 eval_samples: 8 classes: 5 }} }}
trainer {{ global_batch: 8 virtual_replicas: 4 steps: 4 seed: 3 eval_every_steps: 2 check_every_steps: 0 }}
optimizer {{ learning_rate: 0.01 adamw {{}} }}
parallel {{ reduction: REPRODUCIBLE {} }}
)",
                                                parallel),
                                    "attention_marks_test", {});
  };
  const EndedRank first = train_sessions(config(""), "dp=1")[0];
  for (const char* layout :
       {"dp=2", "dp=4,shard=optimizer", "dp=1,pp=2", "dp=2,pp=2,recompute=selective", "dp=2,sync=ps"}) {
    const EndedRank other = train_sessions(config(""), layout)[0];
    EXPECT_EQ(losses_of(other.records), losses_of(first.records)) << layout;
    // A rank of a pipeline does not have all parameters.
    EXPECT_TRUE(other.parameters_hash == 0 || other.parameters_hash == first.parameters_hash) << layout;
  }
  EXPECT_EQ(train_sessions(config("intra_op_threads: 3"), "dp=2")[0].parameters_hash, first.parameters_hash);
}

}  // namespace
}  // namespace lockstep::train
