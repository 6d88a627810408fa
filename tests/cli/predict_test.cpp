#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

std::vector<std::vector<std::string>> cells_of(const std::string& path) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& line : split(read_text_file(path), '\n'))
    if (!line.empty()) rows.push_back(split(line, ','));
  return rows;
}

TEST(Predict, TellsClassesOfEverySampleAndAgreesWithEval) {
  const SmallConfig config;
  const Json trained = only_json(lockstep({"train", config.path(), "--out", config / "run", "--json"}));
  const Json told = only_json(lockstep(
      {"predict", "--checkpoint", config / "run", "--out", config / "a.csv", "--json", "--threads", "1"}));
  EXPECT_EQ(told["step"], 12);
  EXPECT_EQ(told["samples"], 50);
  EXPECT_EQ(told["known"], 50);
  EXPECT_EQ(told["accuracy"], trained["eval_accuracy"]);
  EXPECT_EQ(told["classes"], Json({"0", "1", "2"}));
  int64_t sum = 0, right = 0;
  for (size_t row = 0; row < 3; ++row)
    for (size_t column = 0; column < 3; ++column) {
      sum += told["confusion"][row][column].get<int64_t>();
      right += row == column ? told["confusion"][row][column].get<int64_t>() : 0;
    }
  EXPECT_EQ(sum, 50);
  EXPECT_DOUBLE_EQ(right / 50.0, told["accuracy"]);

  const auto rows = cells_of(config / "a.csv");
  ASSERT_EQ(rows.size(), 51u);
  EXPECT_EQ(rows[0],
            (std::vector<std::string>{"sample", "name", "class", "predicted", "p(0)", "p(1)", "p(2)"}));
  int64_t as_told = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), 7u);
    EXPECT_EQ(rows[i][0], std::to_string(i - 1));
    as_told += rows[i][2] == rows[i][3] ? 1 : 0;
    double all = 0, largest = 0;
    for (size_t c = 4; c < 7; ++c) {
      all += std::stod(rows[i][c]);
      largest = std::max(largest, std::stod(rows[i][c]));
    }
    EXPECT_NEAR(all, 1, 1e-5);
    EXPECT_EQ(std::stod(rows[i][4 + std::stoul(rows[i][3])]), largest);
  }
  EXPECT_EQ(as_told, right);

  const Ran people = lockstep({"predict", "--checkpoint", config / "run", "--threads", "2"});
  EXPECT_EQ(people.code, 0) << people.err;
  EXPECT_THAT(people.out, HasSubstr("accuracy"));
  const Ran again = lockstep({"predict", "--checkpoint", config / "run", "--out", config / "a.csv"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("a.csv"));
}

TEST(Predict, OfOtherTextsDoesNotNeedTheListThatDividedTheRuns) {
  const SmallConfig config;
  std::string texts;
  for (int i = 0; i < 60; ++i) texts += i % 2 == 0 ? "low\taaaa\n" : "high\tzzzz\n";
  write_file(config / "t.tsv", texts);
  write_file(config / "list", "3\n50\n51\n");
  const std::string model =
      "{input {name: \"tokens\" shape: [4] type: INT32} input {name: \"label\" type: INT32} "
      "layer {name: \"bytes\" input: \"tokens\" embedding {vocabulary: 256 width: 4}} layer {name: \"flat\" "
      "flatten {}} layer {name: \"a\" linear {units: 2}} layer {name: \"loss\" input: [\"a\", \"label\"] "
      "softmax_cross_entropy {}}}";
  const Ran trained =
      lockstep({"train", config.path(), "--quiet", "--data-dir", config / "", "--out", config / "run",
                "--set", "data={lines {files: \"t.tsv\" eval_list: \"list\"}}", "--set", "model=" + model});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::filesystem::remove(config / "list");
  write_file(config / "new.tsv", "low\taaaa\nhigh\tzzzz\n");
  const Json told = only_json(
      lockstep({"predict", "--checkpoint", config / "run", "--samples", config / "new.tsv", "--json"}));
  EXPECT_EQ(told["samples"], 2);
}

TEST(Predict, NamesClassesOfATableAndTellsNumbersInItsUnits) {
  const SmallConfig config;
  std::string table = "size,weight,kind\n";
  for (int i = 0; i < 120; ++i)
    table +=
        fmt::format("{},{},{}\n", i % 10, 1000 + 50 * (i % 10), i % 10 < 5 ? "\"small, round\"" : "large");
  write_file(config / "t.csv", table);
  const std::vector<std::string> common = {"train",     config.path(), "--quiet",          "--data-dir",
                                           config / "", "--set",       "trainer.steps=300"};
  const auto train = [&](const std::string& name, const std::string& data, const std::string& model) {
    const Ran ran = lockstep(common + std::vector<std::string>{"--out", config / name, "--set",
                                                               "data=" + data, "--set", "model=" + model});
    EXPECT_EQ(ran.code, 0) << ran.err;
  };
  const std::string layers =
      "layer {name: \"a\" input: \"features\" linear {units: 8}} layer {name: \"b\" tanh {}} "
      "layer {name: \"c\" linear {units: ";
  train("kinds", "{table {files: \"t.csv\" target: \"kind\" eval_fraction: 0.2}}",
        "{input {name: \"features\" shape: [2]} input {name: \"label\" type: INT32} " + layers +
            "2}} layer {name: \"loss\" input: [\"c\", \"label\"] softmax_cross_entropy {}}}");
  const Json kinds = only_json(
      lockstep({"predict", "--checkpoint", config / "kinds", "--out", config / "kinds.csv", "--json"}));
  EXPECT_EQ(kinds["classes"], Json({"large", "small, round"}));
  EXPECT_GT(kinds["accuracy"], 0.9);
  EXPECT_THAT(read_text_file(config / "kinds.csv"), HasSubstr("\"p(small, round)\""));

  // Rows whose kind is not known, in a column of their own and without one.
  write_file(config / "new.csv", "weight,size\n1000,0\n1450,9\n");
  write_file(config / "half.csv", "size,weight,kind\n0,1000,\n9,1450,large\n");
  for (const auto& [file, known] : {std::pair{"new.csv", 0}, {"half.csv", 1}}) {
    const Json told =
        only_json(lockstep({"predict", "--checkpoint", config / "kinds", "--samples", config / file, "--json",
                            "--out", config / (file + std::string(".out"))}));
    EXPECT_EQ(told["samples"], 2);
    EXPECT_EQ(told["known"], known);
    EXPECT_EQ(cells_of(config / (file + std::string(".out")))[1][2], "");
  }
  EXPECT_EQ(lockstep({"eval", "--checkpoint", config / "kinds", "--set", "data.table.eval_fraction=0",
                      "--set", "data.table.eval_files=\"" + (config / "new.csv") + "\""})
                .code,
            65)
      << "a loss needs the truth";

  train("weights", "{table {files: \"t.csv\" target: \"weight\" columns: \"size\" eval_fraction: 0.2}}",
        "{input {name: \"features\" shape: [1]} input {name: \"target\" shape: [1]} " + layers +
            "1}} layer {name: \"loss\" input: [\"c\", \"target\"] mean_squared_error {}}}");
  const Json weights = only_json(
      lockstep({"predict", "--checkpoint", config / "weights", "--out", config / "weights.csv", "--json"}));
  const auto rows = cells_of(config / "weights.csv");
  EXPECT_EQ(rows[0], (std::vector<std::string>{"sample", "name", "target", "predicted"}));
  double squares = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_GE(std::stod(rows[i][2]), 1000 - 1e-3);
    squares += std::pow(std::stod(rows[i][2]) - std::stod(rows[i][3]), 2);
  }
  const double mean = squares / static_cast<double>(rows.size() - 1);
  EXPECT_NEAR(weights["mean_squared_error"], mean, 1e-3 * mean + 1e-3);
  EXPECT_LT(mean, 100 * 100) << "of weights from 1000 to 1450";
  write_file(config / "sizes.csv", "size\n0\n9\n");
  const Json sizes = only_json(
      lockstep({"predict", "--checkpoint", config / "weights", "--samples", config / "sizes.csv", "--json"}));
  EXPECT_EQ(sizes["samples"], 2);
  EXPECT_FALSE(sizes.contains("mean_squared_error"));
}

TEST(Predict, RefusesWhatItCannotTell) {
  const SmallConfig config;
  const auto refusal = [&](const std::string& checkpoint, const std::vector<std::string>& more, int code) {
    const Ran ran = lockstep(std::vector<std::string>{"predict", "--checkpoint", checkpoint} + more);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  EXPECT_THAT(refusal(config / "nothing", {}, 2), HasSubstr("lockstep predict CONFIG"));
  const Ran trained = lockstep({"train", config.path(), "--out", config / "run", "--quiet"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  refusal(config / "run", {"--set", "model.mlp.hidden=[9]"}, 2);
  EXPECT_THAT(refusal(config / "run",
                      {"--set", "data.synthetic.eval_samples=0", "--set", "trainer.eval_every_steps=0"}, 2),
              HasSubstr("evaluation data"));
  EXPECT_THAT(refusal(config / "run", {"--samples", config / "nothing"}, 2), HasSubstr("nothing"));
  EXPECT_THAT(refusal(config / "run", {"--samples", config.path()}, 2), HasSubstr("--samples"));
  EXPECT_THAT(refusal(config / "run", {"--out", config / "no/such/folder.csv"}, 2), HasSubstr("--out"));
  const Ran gpt = lockstep({"train", config.path(), "--out", config / "gpt", "--quiet", "--set",
                            "model={gpt {vocabulary: 11 context: 6 layers: 1 heads: 1 width: 8}}", "--set",
                            "data={synthetic {samples: 48 eval_samples: 24 classes: 11}}"});
  EXPECT_EQ(gpt.code, 0) << gpt.err;
  EXPECT_THAT(refusal(config / "gpt", {}, 2), HasSubstr("lockstep generate"));
}

}  // namespace
}  // namespace lockstep::test
