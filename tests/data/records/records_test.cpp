#include "data/records/records.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/faulty_file_system.h"
#include "data/records/packed_data.h"
#include "data/records/record_index.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::FaultyFileSystem;

TEST_F(Records, OfImageFilesAreTheSameSamplesClassesAndSplit) {
  add_images(40);
  const PackResult made = pack_records(options_, pack_);
  EXPECT_EQ(made.records[0], 29);
  EXPECT_EQ(made.records[1], 11);
  EXPECT_GT(made.shards, 2);
  expect_same_data();
}

TEST_F(Records, HoldTheFilesBytesAsTheyAre) {
  add("all/cat/a.png", png_bytes({4, 4, 3}, picture(1, 4, 4)));
  options_.images.eval_fraction = 0;
  pack_records(options_, pack_);
  const Shard shard(path("train-00000.records"));
  EXPECT_EQ(bytes_of(shard, 0), read_file(directory_ / "all/cat/a.png"));
  EXPECT_EQ(shard.name(0), "cat/a.png");
  EXPECT_EQ(shard.entry(0).offset % kRecordAlignment, 0u);
}

TEST_F(Records, OfPixelsAreWhatFullDecodingGives) {
  add_images(12);
  options_.images.scaled_decoding = false;
  pack_.images.as_pixels = true;
  pack_records(options_, pack_);
  for (const int64_t channels : {3, 1}) {
    options_.images.channels = channels;
    const auto original = open_datasets(options_), records = open_datasets(packed());
    EXPECT_EQ(all_bytes(*records.train), all_bytes(*original.train));
    EXPECT_EQ(all_bytes(*records.eval), all_bytes(*original.eval));
  }
}

TEST_F(Records, OfGrayPixelsAreNoColorImages) {
  add_images(8);
  options_.images.channels = 1;
  pack_.images.as_pixels = true;
  pack_records(options_, pack_);
  options_.images.channels = 3;
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(packed()); }), Mentions("data.records.channels"));
}

TEST_F(Records, OfSmallerImagesHaveTheLongestSideAndLeaveSmallOnesAlone) {
  add("all/cat/wide.png", png_bytes({50, 100, 3}, picture(1, 50, 100)));
  add("all/dog/high.jpg", jpeg_bytes({200, 20, 3}, picture(2, 200, 20)));
  add("all/dog/small.png", png_bytes({30, 40, 3}, picture(3, 30, 40)));
  options_.images.eval_fraction = 0;
  pack_.images.longest_side = 40;
  pack_records(options_, pack_);
  const auto data = open_datasets(packed());
  using Size = std::pair<int64_t, int64_t>;
  EXPECT_EQ(data.train->stored_size(0), Size(20, 40));
  EXPECT_EQ(data.train->stored_size(1), Size(40, 4));
  EXPECT_EQ(data.train->stored_size(2), Size(30, 40));
  EXPECT_EQ(all_bytes(*data.train).size(), 3u * 3 * (8 * 8 * 3 * 4 + 4));
  const Shard shard(path("train-00000.records"));
  EXPECT_EQ(bytes_of(shard, 2), read_file(directory_ / "all/dog/small.png"));
  EXPECT_NE(data.train->identity(), open_datasets(options_).train->identity());
}

TEST_F(Records, OfTablesAndLinesAreTheSameSamples) {
  std::string table = "a,b,kind\n", lines;
  for (int i = 0; i < 50; ++i) {
    table += fmt::format("{},{},{}\n", i * 7 % 11, i, i % 3 ? "x" : "y");
    lines += fmt::format("{}\ttext number {}\n", i % 2 ? "good" : "bad", i);
  }
  write_file(directory_ / "t.csv", table);
  write_file(directory_ / "l.tsv", lines);
  options_.transforms.clear();
  options_.eval_transforms.clear();
  options_.kind = DataKind::table;
  options_.table = {.files = {"t.csv"}, .eval_fraction = 0.2, .target = "kind"};
  pack_records(options_, pack_);
  expect_same_data();
  const Encodings of_table = open_datasets(options_).train->encodings();
  options_.kind = DataKind::lines;
  options_.lines = {.files = {"l.tsv"}, .eval_fraction = 0.2, .length = 16};
  EXPECT_THAT(message_of<ConfigError>([&] { pack_records(options_, pack_); }), Mentions("--force"));
  pack_.overwrite = true;
  pack_records(options_, pack_);
  expect_same_data();
  options_.trains = false;
  options_.encodings = open_datasets(packed()).eval->encodings();
  EXPECT_EQ(open_datasets(packed()).train, nullptr);
  options_.encodings = of_table;
  EXPECT_THAT(error(), Mentions("packed"));
}

TEST_F(Records, AreRefusedOfKindsThatGainNothing) {
  for (const auto& [kind, name] :
       {std::pair(DataKind::tokens, "tokens"), std::pair(DataKind::synthetic, "synthetic"),
        std::pair(DataKind::idx, "idx"), std::pair(DataKind::cifar, "cifar"),
        std::pair(DataKind::text, "text"), std::pair(DataKind::own, "own"),
        std::pair(DataKind::records, "records")}) {
    options_.kind = kind;
    EXPECT_THAT(message_of<ConfigError>([&] { pack_records(options_, pack_); }), Mentions(name));
  }
  EXPECT_FALSE(fs::exists(pack_.directory));
}

TEST_F(Records, FollowTheClassesOfTheModelThatIsEvaluated) {
  add_images(12);
  pack_records(options_, pack_);
  options_.trains = false;
  options_.encodings = {{"classes.json", R"(["ant","dog","cat"])"}};
  expect_same(*open_datasets(packed()).eval, *open_datasets(options_).eval);
  options_.encodings = {{"classes.json", R"(["ant","dog"])"}};
  EXPECT_THAT(error(), Mentions("cat"));
}

// Writing.

TEST_F(Records, AreKeptIfTheyAreThereAndDependOnNoThreads) {
  add_images(40);
  const PackResult first = pack_records(options_, pack_);
  const auto before = contents();
  const PackResult second = pack_records(options_, pack_);
  EXPECT_EQ(first.kept_shards, 0);
  EXPECT_EQ(second.kept_shards, first.shards);
  EXPECT_EQ(contents(), before);
  fs::remove_all(pack_.directory);
  pack_.threads = 1;
  pack_records(options_, pack_);
  EXPECT_EQ(contents(), before);
}

TEST_F(Records, AreFinishedAfterACrashAtAnyOperation) {
  add_images(16);
  pack_.shard_bytes = 1 << 16;
  pack_records(options_, pack_);
  const auto whole = contents();
  bool fired = true;
  int64_t kept = 0;
  for (int operation = 0; fired; ++operation) {
    fs::remove_all(pack_.directory);
    FaultyFileSystem files(FaultyFileSystem::Fault::crash, operation);
    PackOptions dying = pack_;
    dying.files = &files;
    try {
      pack_records(options_, dying);
    } catch (const std::exception&) {
    }
    fired = files.fired();
    files.lose_unsynced();
    if (fs::exists(pack_.directory))
      for (const auto& name : list_directory(pack_.directory))
        if (!name.ends_with(".part")) EXPECT_EQ(read_file(path(name)), whole.at(name)) << name;
    kept += pack_records(options_, pack_).kept_shards;
    EXPECT_EQ(contents(), whole) << "operation " << operation;
  }
  EXPECT_GT(kept, 0);
}

TEST_F(Records, AreMadeAnewIfAShardIsDamaged) {
  add_images(40);
  const PackResult first = pack_records(options_, pack_);
  const auto whole = contents();
  change("train-00001.records", 100);
  write_file(path("eval-00000.records"), std::string("short"));
  write_file(path("train-00000.records.part"), std::string("left by a kill"));
  EXPECT_EQ(pack_records(options_, pack_).kept_shards, first.shards - 2);
  EXPECT_EQ(contents(), whole);
}

TEST_F(Records, AreNotMixedWithOthers) {
  add_images(16);
  pack_records(options_, pack_);
  const auto before = contents();
  add("all/cat/another.png", png_bytes({4, 4, 3}, picture(1, 4, 4)));
  EXPECT_THAT(message_of<ConfigError>([&] { pack_records(options_, pack_); }), Mentions("--force"));
  EXPECT_EQ(contents(), before);
  pack_.overwrite = true;
  pack_records(options_, pack_);
  expect_same_data();
}

TEST_F(Records, LeaveOutWhatCannotBeDecoded) {
  add_images(16);
  auto damaged = read_file(directory_ / "all/dog/1.png");
  add("all/cat/damaged.png",
      test::Bytes(damaged.begin(), damaged.begin() + static_cast<long>(damaged.size() / 2)));
  pack_.images.as_pixels = true;
  EXPECT_THAT(message_of<DataError>([&] { pack_records(options_, pack_); }), Mentions("damaged.png"));
  options_.on_damage = DamagePolicy::skip;
  EXPECT_EQ(pack_records(options_, pack_).left_out, 1);
  const auto data = open_datasets(packed());
  EXPECT_EQ(data.train->size() + data.eval->size(), 16);
  EXPECT_EQ(data.train->damage().left_out + data.eval->damage().left_out, 1);
}

}  // namespace
}  // namespace lockstep::data
