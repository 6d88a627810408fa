#include "data/records/records.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "checkpoint/faulty_file_system.h"
#include "data/check.h"
#include "data/images/image_writer.h"
#include "data/records/record_index.h"
#include "data/records/record_packer.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::FaultyFileSystem;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;

/// Every sample's fields, three epochs of it, one behind the other.
std::vector<std::byte> all_bytes(const Dataset& data) {
  std::vector<std::byte> all;
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<std::vector<std::byte>> fields;
      std::vector<std::byte*> to;
      for (const auto& field : data.fields()) {
        fields.emplace_back(static_cast<size_t>(field.spec.shape.count() * size_of(field.spec.dtype)));
        to.push_back(fields.back().data());
      }
      data.read(SampleKey(i, epoch, 5), to);
      for (const auto& field : fields) all.insert(all.end(), field.begin(), field.end());
    }
  return all;
}

test::Bytes bytes_of(const Shard& shard, int64_t record) {
  test::Bytes bytes(shard.entry(record).size_bytes);
  const auto copy = [&](std::span<const uint8_t> read) noexcept { std::ranges::copy(read, bytes.begin()); };
  EXPECT_EQ(shard.read(record, copy), RecordState::whole);
  return bytes;
}

void expect_same(const Dataset& packed, const Dataset& original) {
  EXPECT_EQ(packed.fields(), original.fields());
  EXPECT_EQ(packed.classes(), original.classes());
  EXPECT_EQ(packed.class_names(), original.class_names());
  EXPECT_EQ(packed.encodings(), original.encodings());
  EXPECT_EQ(packed.identity(), original.identity());
  for (const auto& field : original.fields())
    EXPECT_EQ(packed.vocabulary(field.name), original.vocabulary(field.name));
  EXPECT_EQ(all_bytes(packed), all_bytes(original));
}

/// A wavy picture, so that no two images are alike.
std::vector<uint8_t> picture(int seed, int64_t height, int64_t width) {
  std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3));
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] =
        static_cast<uint8_t>(127 + 90 * std::sin(0.01 * static_cast<double>(i * (1 + seed % 7)) + seed));
  return pixels;
}

class Records : public ::testing::Test {
 protected:
  Records() {
    options_.kind = DataKind::images;
    options_.directory = directory_.path();
    options_.images.train = "all";
    options_.images.eval_fraction = 0.25;
    options_.transforms = {RandomResizedCropOptions{.height = 8, .width = 8}, FlipOptions{}};
    options_.eval_transforms = {ResizeOptions{.height = 8, .width = 8}};
    pack_.directory = directory_ / "packed";
    pack_.shard_bytes = 1 << 16;
    pack_.threads = 3;
  }

  void add_images(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("all/{}/{}.", i % 3 == 0 ? "cat" : "dog", i);
      const int64_t height = 60 + i % 5, width = 90 - i % 4;
      add(name + (i % 2 ? "png" : "jpg"), i % 2 ? png_bytes({height, width, 3}, picture(i, height, width))
                                                : jpeg_bytes({height, width, 3}, picture(i, height, width)));
    }
  }
  void add(const std::string& name, const test::Bytes& bytes) {
    fs::create_directories(fs::path(directory_ / name).parent_path());
    write_file(directory_ / name, bytes);
  }
  DataOptions packed() const {
    DataOptions options = options_;
    options.kind = DataKind::records;
    options.records.folder = "packed";
    options.records.channels = options_.images.channels;
    options.records.scaled_decoding = options_.images.scaled_decoding;
    return options;
  }
  void expect_same_data() const {
    const auto original = open_datasets(options_), records = open_datasets(packed());
    expect_same(*records.train, *original.train);
    ASSERT_EQ(records.eval == nullptr, original.eval == nullptr);
    if (original.eval) expect_same(*records.eval, *original.eval);
  }
  std::string error() const {
    return message_of<DataError>([&] { open_datasets(packed()); });
  }
  /// 500 rows of a table, packed into one shard.
  void pack_table(int classes) {
    std::string table = "a,b\n";
    for (int i = 0; i < 500; ++i) table += fmt::format("{},{}\n", i, i % classes);
    write_file(directory_ / "t.csv", table);
    options_.transforms.clear();
    options_.eval_transforms.clear();
    options_.kind = DataKind::table;
    options_.table = {.files = {"t.csv"}, .target = "b"};
    pack_.shard_bytes = 1 << 20;
    pack_records(options_, pack_);
  }
  std::string path(const std::string& name) const { return pack_.directory + "/" + name; }
  /// Writes the shard with a byte changed.
  void change(const std::string& name, size_t byte) const {
    auto bytes = read_file(path(name));
    bytes.at(byte) ^= 1;
    write_file(path(name), bytes);
  }
  std::map<std::string, test::Bytes> contents() const {
    std::map<std::string, test::Bytes> all;
    for (const auto& name : list_directory(pack_.directory)) all[name] = read_file(path(name));
    return all;
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
  PackOptions pack_;
};

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

// Opening.

TEST_F(Records, NameAShardThatIsNotWhole) {
  add_images(40);
  pack_records(options_, pack_);
  const std::string name = "train-00001.records";
  const auto whole = read_file(path(name));
  for (const size_t size : {size_t{0}, size_t{63}, size_t{127}, whole.size() / 2, whole.size() - 1}) {
    write_file(path(name), test::Bytes(whole.begin(), whole.begin() + static_cast<long>(size)));
    EXPECT_THAT(error(), Mentions(name)) << size;
  }
  write_file(path(name), whole);
  change(name, whole.size() - 70);  // of a name
  EXPECT_THAT(error(), Mentions(name + " ... checksum"));
  fs::remove(path(name));
  EXPECT_THAT(message_of<IoError>([&] { open_datasets(packed()); }), Mentions(name));
}

TEST_F(Records, AreCheckedInAllShards) {
  add_images(60);
  pack_records(options_, pack_);
  for (const char* name : {"train-00000.records", "train-00001.records", "eval-00000.records"})
    fs::resize_file(path(name), 200);
  const CheckedData checked = check_data(packed(), 1);
  std::vector<std::string> files;
  for (const auto& damage : checked.on_opening) files.push_back(fs::path(damage.file).filename());
  EXPECT_THAT(files, ElementsAre("train-00000.records", "train-00001.records", "eval-00000.records"));
}

TEST_F(Records, AreNeverReadOutOfTheFile) {
  add_images(40);
  pack_records(options_, pack_);
  const std::string name = "train-00001.records";
  const auto whole = read_file(path(name));
  // Each byte of the footer, and of the first entry of the table.
  const Shard shard(path(name));
  for (const size_t begin : {whole.size() - 64, static_cast<size_t>(shard.footer().table_offset)})
    for (size_t byte = begin; byte < begin + 64; ++byte) {
      auto bytes = whole;
      bytes[byte] ^= 0xff;
      fs::remove(path(name));  // the open shard keeps its file
      write_file(path(name), bytes);
      EXPECT_THAT(error(), Mentions(name)) << byte - begin;
    }
}

TEST_F(Records, NameAShardOfAnotherPacking) {
  add_images(40);
  pack_records(options_, pack_);
  PackOptions other = pack_;
  other.directory = directory_ / "other";
  other.images.longest_side = 30;
  pack_records(options_, other);
  fs::copy_file(other.directory + "/eval-00000.records", path("eval-00000.records"),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(error(), Mentions("eval-00000.records ... packing"));
  fs::copy_file(path("train-00001.records"), path("train-00000.records"),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(error(), Mentions("train-00000.records ... train-00001.records"));
}

TEST_F(Records, NameAnIndexThatIsNone) {
  add_images(8);
  pack_records(options_, pack_);
  const auto whole = read_file(path("records.json"));
  const std::string text(whole.begin(), whole.end());
  const std::string hostile[] = {"",
                                 "{}",
                                 "[]",
                                 "{\"format\":\"lockstep records\"}",
                                 text.substr(0, text.size() / 2),
                                 "{\"format\":\"lockstep records\",\"version\":9}"};
  for (const auto& each : hostile) {
    write_file(path("records.json"), each);
    EXPECT_THAT(error(), Mentions("records.json")) << each;
  }
  std::string changed = text;
  changed.replace(changed.find("cat"), 3, "cow");
  write_file(path("records.json"), changed);
  EXPECT_THAT(error(), Mentions("records.json ... checksum"));
  fs::remove(path("records.json"));
  EXPECT_THAT(message_of<IoError>([&] { open_datasets(packed()); }), Mentions("records.json"));
}

TEST_F(Records, AreComparedWithTheirChecksumsWhenTheyAreRead) {
  add_images(40);
  pack_records(options_, pack_);
  change("train-00000.records", 100);  // within the first record
  const std::string message = message_of<DataError>([&] { all_bytes(*open_datasets(packed()).train); });
  EXPECT_THAT(message, Mentions("train-00000.records ... checksum"));
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(packed());
  all_bytes(*data.train);
  EXPECT_THAT(data.train->damage().replaced, ElementsAre(0));
}

// While they are used.

TEST_F(Records, OfImagesInAShardThatIsCutShortAreNamed) {
  add_images(40);
  pack_records(options_, pack_);
  const auto data = open_datasets(packed());
  all_bytes(*data.train);
  fs::resize_file(path("train-00000.records"), 5000);
  EXPECT_THAT(message_of<DataError>([&] { all_bytes(*data.train); }),
              Mentions("train-00000.records ... byte 0 ... 5000"));
  const auto damage = data.train->find_damage(0);
  ASSERT_TRUE(damage);
  EXPECT_THAT(damage->what, Mentions("5000"));
}

TEST_F(Records, OfAShardThatIsCutShortAreReplacedIfDamageIsSkipped) {
  add_images(40);
  pack_records(options_, pack_);
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(packed());
  const int64_t first = Shard(path("train-00000.records")).count();
  fs::resize_file(path("train-00000.records"), 0);
  all_bytes(*data.train);
  std::vector<int64_t> lost(static_cast<size_t>(first));
  std::iota(lost.begin(), lost.end(), 0);
  EXPECT_EQ(data.train->damage().replaced, lost);
}

TEST_F(Records, OfRowsInAShardThatIsCutShortAreNamed) {
  pack_table(7);
  const auto data = open_datasets(packed());
  all_bytes(*data.train);
  const auto size = fs::file_size(path("train-00000.records"));
  // Also where the rest of the last page is there, and reads as zeros.
  for (const auto left : {size - 64 * 400, size / 2, size_t{0}}) {
    fs::resize_file(path("train-00000.records"), left);
    EXPECT_THAT(message_of<DataError>([&] { all_bytes(*data.train); }), Mentions("train-00000.records"))
        << left;
  }
}

/// Under the same table, after all of them were read.
TEST_F(Records, ThatChangeInPlaceAreNoticed) {
  pack_table(7);
  const auto data = open_datasets(packed());
  const auto before = all_bytes(*data.train);
  const std::string shard = path("train-00000.records");
  const auto time = fs::last_write_time(shard);
  change("train-00000.records", kRecordAlignment);             // the first record
  fs::last_write_time(shard, time + std::chrono::seconds(1));  // whatever the file system's clock ticks in
  const auto reads = [&] {                                     // so many of them that the file is looked at
    for (int i = 0; i < 64; ++i) all_bytes(*data.train);
  };
  EXPECT_THAT(message_of<DataError>(reads), Mentions("train-00000.records ... checksum"));
  change("train-00000.records", kRecordAlignment);  // as it was
  fs::last_write_time(shard, time + std::chrono::seconds(2));
  for (int i = 0; i < 64; ++i) try {
      all_bytes(*data.train);
    } catch (const DataError&) {  // until it is looked at
    }
  EXPECT_EQ(all_bytes(*data.train), before);
}

TEST_F(Records, OfAShardThatIsOverwrittenAreNamed) {
  pack_table(7);
  const auto data = open_datasets(packed());
  const auto before = all_bytes(*data.train);
  const auto shard = read_file(path("train-00000.records"));
  pack_.directory = directory_ / "others";
  pack_table(5);
  const auto other = read_file(path("train-00000.records"));
  ASSERT_EQ(other.size(), shard.size());
  pack_.directory = directory_ / "packed";
  write_file(path("train-00000.records"), other);  // the same file, as cp writes it
  EXPECT_THAT(message_of<DataError>([&] { all_bytes(*data.train); }),
              Mentions("train-00000.records ... overwritten"));
  write_file(path("train-00000.records"), shard);
  EXPECT_EQ(all_bytes(*data.train), before);
}

}  // namespace
}  // namespace lockstep::data
