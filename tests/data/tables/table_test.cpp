#include "data/tables/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/tables/columns.h"
#include "data/tables/npy_testing.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::npy_bytes;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

const std::string kIris =
    "sepal,color,petal,species\n"
    "1,red,10,setosa\n"
    "3,blue,10,virginica\n"
    "5,red,10,setosa\n"
    "7,green,10,virginica\n";

class Table : public ::testing::Test {
 protected:
  Table() {
    options_.kind = DataKind::table;
    options_.directory = folder_.path();
    options_.table.files = {"a.csv"};
    options_.table.target = "species";
  }
  void write(const std::string& name, const std::string& text) { write_file(folder_ / name, text); }
  std::string refusal() {
    return message_of<DataError>([&] { open_datasets(options_); });
  }
  static std::vector<float> features(const Dataset& data, int64_t sample) {
    std::vector<float> values(static_cast<size_t>(data.fields()[0].spec.shape.count()), 77);
    std::byte* const destinations[] = {reinterpret_cast<std::byte*>(values.data()), nullptr};
    data.read(sample, destinations);
    return values;
  }
  template <class T = int32_t>
  static T target(const Dataset& data, int64_t sample) {
    T value{};
    std::byte* const destinations[] = {nullptr, reinterpret_cast<std::byte*>(&value)};
    data.read(sample, destinations);
    return value;
  }
  TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(Table, MakesFeaturesOfNumbersAndCategories) {
  write("a.csv", kIris);
  const auto data = open_datasets(options_).train;
  ASSERT_EQ(data->size(), 4);
  EXPECT_EQ(data->fields(), (std::vector<Field>{{"features", {Shape{5}, DType::float32}},
                                                {"label", {Shape{}, DType::int32}}}));
  // Mean 4, deviation sqrt(5); blue, green, red; a column that never changes is 0.
  const auto small = static_cast<float>(-3 / std::sqrt(5.0));
  EXPECT_THAT(features(*data, 0), ElementsAre(FloatEq(small), 0, 0, 1, 0));
  EXPECT_THAT(features(*data, 3), ElementsAre(FloatEq(-small), 0, 1, 0, 0));
  EXPECT_EQ(target(*data, 0), 0);
  EXPECT_EQ(target(*data, 1), 1);
  EXPECT_EQ(data->classes(), 2);
  EXPECT_THAT(data->class_names(), ElementsAre("setosa", "virginica"));
}

TEST_F(Table, PredictsNumbers) {
  write("a.csv", kIris);
  options_.table.target = "sepal";
  options_.table.columns = {"petal"};
  options_.table.standardize = false;
  const auto data = open_datasets(options_).train;
  EXPECT_EQ(data->fields()[1], (Field{"target", {Shape{1}, DType::float32}}));
  EXPECT_THAT(features(*data, 2), ElementsAre(10));
  EXPECT_EQ(target<float>(*data, 2), 5);
  options_.table.standardize = true;
  EXPECT_FLOAT_EQ(target<float>(*open_datasets(options_).train, 3), static_cast<float>(3 / std::sqrt(5.0)));
}

TEST_F(Table, TakesNumbersForNamesWhereItIsTold) {
  write("a.tsv", "digit\tx\n10\t1\n9\t2\n10\t3\n");
  options_.table.files = {"a.tsv"};
  options_.table.target = "digit";
  options_.table.categories = {"digit"};
  const auto data = open_datasets(options_).train;
  EXPECT_THAT(data->class_names(), ElementsAre("9", "10")) << "in the order of numbers";
  EXPECT_EQ(target(*data, 0), 1);
}

TEST_F(Table, ReadsArraysOfNumPy) {
  write("a.npy", npy_bytes("<f4", "(2, 3)", std::vector<float>{1, 2, 0, 3, 4, 1}));
  options_.table.files = {"a.npy"};
  options_.table.target = "2";
  options_.table.categories = {"2"};
  options_.table.standardize = false;
  const auto data = open_datasets(options_).train;
  EXPECT_THAT(features(*data, 1), ElementsAre(3, 4));
  EXPECT_EQ(target(*data, 1), 1);
}

TEST_F(Table, StatisticsAreOfTheTrainingRows) {
  write("a.csv", kIris);
  write("b.csv", "species,sepal,color,petal\nsetosa,100,red,11\n");
  options_.table.files = {"*.csv"};
  options_.table.eval_files = {"b.csv"};
  const auto data = open_datasets(options_);
  ASSERT_EQ(data.train->size(), 4);
  ASSERT_EQ(data.eval->size(), 1);
  const auto large = static_cast<float>(96 / std::sqrt(5.0));
  EXPECT_THAT(features(*data.eval, 0), ElementsAre(FloatEq(large), 0, 0, 1, 1));
  EXPECT_EQ(data.train->encodings(), data.eval->encodings());
}

TEST_F(Table, IsEvaluatedAsTheModelWasTrained) {
  write("a.csv", kIris);
  const auto trained = open_datasets(options_).train;
  write("b.csv", "species,sepal,color,petal\nvirginica,4,violet,10\n");
  options_.trains = false;
  options_.encodings = trained->encodings();
  options_.table.files = {"b.csv"};
  options_.table.eval_fraction = 1;
  const auto data = open_datasets(options_).eval;
  EXPECT_THAT(features(*data, 0), ElementsAre(0, 0, 0, 0, 0)) << "a color that no training row has is none";
  EXPECT_EQ(target(*data, 0), 1);
  EXPECT_EQ(data->encodings(), trained->encodings());
  write("b.csv", "species,sepal,color,petal\nrose,4,red,10\n");
  EXPECT_THAT(refusal(), Mentions("b.csv ... line 2 ... species ... rose"));
  options_.encodings = {{"columns.json", "{}"}};
  EXPECT_THAT(refusal(), HasSubstr("columns.json"));
}

TEST_F(Table, ADrawnSplitTakesOfEachClassWhateverTheOrder) {
  std::vector<std::string> lines;
  for (int i = 0; i < 40; ++i)
    lines.push_back(std::to_string(i / 2) + (i % 4 == 0 ? ",setosa\n" : ",virginica\n"));
  options_.table.eval_fraction = 0.2;
  options_.table.standardize = false;
  const auto evaluated = [&] {
    std::string text = "sepal,species\n";
    for (const auto& line : lines) text += line;
    write("a.csv", text);
    const auto data = open_datasets(options_);
    EXPECT_EQ(data.train->size(), 32);
    std::vector<std::pair<float, int32_t>> rows;
    for (int64_t i = 0; i < data.eval->size(); ++i)
      rows.emplace_back(features(*data.eval, i)[0], target(*data.eval, i));
    std::ranges::sort(rows);
    return rows;
  };
  const auto forward = evaluated();
  EXPECT_EQ(std::ranges::count(forward, 0, &std::pair<float, int32_t>::second), 2);
  std::ranges::reverse(lines);
  EXPECT_EQ(evaluated(), forward);
  options_.table.split_seed = 2;
  EXPECT_NE(evaluated(), forward);
}

TEST_F(Table, AListSaysWhichRowsEvaluate) {
  write("a.csv", kIris);
  write("list", "3\n0\n");
  options_.table.eval_list = "list";
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 2);
  EXPECT_THAT((std::vector<int32_t>{target(*data.eval, 0), target(*data.eval, 1)}), ElementsAre(0, 1));
  write("list", "x\n");
  EXPECT_THAT(refusal(), Mentions("list ... x"));
  write("list", "3\n4\n");
  EXPECT_THAT(refusal(), Mentions("list ... '4'"));
  // A damaged row has a number, too.
  write("a.csv", kIris + "9,red,10\n");
  options_.on_damage = DamagePolicy::skip;
  EXPECT_EQ(open_datasets(options_).eval->size(), 1);
}

TEST_F(Table, KeepsNamesOfColumnsBeyondAscii) {
  const std::vector<float> values{1, 2, 3, 4};
  const std::string records(reinterpret_cast<const char*>(values.data()), 16);
  write("a.npy", test::npy_of_version(1,
                                      "[('gr\xf6\xdf"
                                      "e', '<f4'), ('b', '<f4')]",
                                      "(2,)", records));
  options_.table.files = {"a.npy"};
  options_.table.target =
      "gr\xc3\xb6\xc3\x9f"
      "e";
  const auto data = open_datasets(options_).train;
  EXPECT_THAT(data->encodings().at(std::string(kColumnsFile)), HasSubstr(options_.table.target));
}

TEST_F(Table, NamesDamageOrLeavesItOut) {
  const std::pair<std::string, std::string> damages[] = {
      {"9,red,10\n", "a.csv ... line 6 (byte 99) ... 4 ... 3"},
      {"9,red,10,setosa,1\n", "line 6 ... 4 ... 5"},
      {"x,red,10,setosa\n", "line 6 ... sepal ... 'x'"},
      {"nan,red,10,setosa\n", "line 6 ... sepal ... 'nan'"},
      {"9,red,10,\n", "line 6 ... species ... empty"},
      {"9,r\xff,10,setosa\n", "line 6 ... cell 2 ... 0xff"},
      {"9,\"red,10,setosa\n", "line 6 ... never closed"},
  };
  for (const auto& [line, mention] : damages) {
    write("a.csv", kIris + line);
    options_.on_damage = DamagePolicy::fail;
    EXPECT_THAT(refusal(), Mentions(mention)) << line;
    options_.on_damage = DamagePolicy::skip;
    const auto data = open_datasets(options_).train;
    EXPECT_EQ(data->size(), 4) << line;
    EXPECT_EQ(data->damage().left_out, 1) << line;
  }
}

TEST_F(Table, ADamagedRowNamesNoClass) {
  write("a.csv", "species,x\nrose,1\ntulip,\nlily,y\n");
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(options_).train;
  EXPECT_THAT(data->class_names(), ElementsAre("rose"));
  EXPECT_EQ(data->damage().left_out, 2);
}

TEST_F(Table, NamesWhatAFileLacks) {
  write("a.csv", "sepal,specie\n1,x\n");
  EXPECT_THAT(refusal(), Mentions("a.csv ... 'species' ... specie"));
  write("a.csv", "sepal,sepal\n");
  EXPECT_THAT(refusal(), Mentions("a.csv ... sepal ... twice"));
  write("a.csv", "species\n");
  EXPECT_THAT(refusal(), HasSubstr("species"));
  write("a.csv", "");
  EXPECT_THAT(refusal(), HasSubstr("a.csv"));
  write("a.csv", "x,species\n");
  EXPECT_THAT(refusal(), HasSubstr("found none"));
  write("a.txt", "x,species\n");
  options_.table.files = {"a.txt"};
  EXPECT_THAT(refusal(), HasSubstr("a.txt"));
  options_.table.files = {"a.csv"};
  options_.table.categories = {"y"};
  EXPECT_THROW(open_datasets(options_), ConfigError);
}

TEST_F(Table, IdentityIsOfWhatModelsGet) {
  write("a.csv", kIris);
  const auto identity = [&] { return open_datasets(options_).train->identity(); };
  const auto base = identity();
  std::filesystem::rename(folder_ / "a.csv", folder_ / "b.csv");
  options_.table.files = {"b.csv"};
  EXPECT_EQ(identity(), base);
  options_.table.standardize = false;
  EXPECT_NE(identity(), base);
}

TEST(Columns, AreReadBack) {
  const Columns columns{.inputs = {{.name = "a\n", .mean = 0.1, .deviation = 3},
                                   {.name = "b", .is_category = true, .values = {"x", "y"}}},
                        .target = {.name = "t", .mean = -1e-300, .deviation = 1e300}};
  EXPECT_EQ(columns_from_json(to_json(columns), "name"), columns);
  for (const char* damaged : {"", "[]", "{\"format\":\"lockstep columns\",\"format_version\":2}"})
    EXPECT_THAT(message_of<DataError>([&] { columns_from_json(damaged, "some/name"); }),
                HasSubstr("some/name"));
}

TEST_F(Table, WhatNeverChangesBecomesZero) {
  std::string text = "a,b,species\n";  // ten times 0.1, divided by ten, is not 0.1
  for (int row = 0; row < 10; ++row) text += "0.1," + std::to_string(row) + (row % 2 ? ",x\n" : ",y\n");
  write("a.csv", text);
  const auto data = open_datasets(options_);
  for (int64_t row = 0; row < data.train->size(); ++row) EXPECT_EQ(features(*data.train, row)[0], 0);
}

TEST_F(Table, AFirstRowThatIsNoNumberMakesNoCategory) {
  write("a.csv", "a,species\nnan,x\n1,y\n");
  EXPECT_THAT(refusal(), HasSubstr("line 2"));
}

}  // namespace
}  // namespace lockstep::data
