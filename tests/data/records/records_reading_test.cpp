// Packed records that are opened and read: damaged, cut short, of another packing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "data/check.h"
#include "data/records/packed_data.h"
#include "data/records/record_index.h"
#include "data/records/record_set.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;

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

/// Under the same table, after all of them were read; and whoever writes sets the file's time back.
TEST_F(Records, ThatChangeInPlaceAreNoticed) {
  pack_table(7);
  const auto data = open_datasets(packed());
  const auto before = all_bytes(*data.train);
  const std::string shard = path("train-00000.records");
  const auto time = fs::last_write_time(shard);
  const auto change_unseen = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a tick of the file system's clock
    change("train-00000.records", kRecordAlignment);             // the first record
    fs::last_write_time(shard, time);
  };
  change_unseen();
  const auto reads = [&] {  // so many of them that the file is looked at
    for (int i = 0; i < 64; ++i) all_bytes(*data.train);
  };
  EXPECT_THAT(message_of<DataError>(reads), Mentions("train-00000.records ... checksum"));
  change_unseen();  // as it was
  for (int i = 0; i < 64; ++i) try {
      all_bytes(*data.train);
    } catch (const DataError&) {  // until it is looked at
    }
  EXPECT_EQ(all_bytes(*data.train), before);
}

/// If every 64th read looked at the shard that it reads, all looks of this order would be at the second one.
TEST_F(Records, ThatChangeInPlaceAreNoticedInEachShard) {
  add_images(40);
  for (const char* name : {"train-00000.records", "train-00001.records"}) {
    fs::remove_all(pack_.directory);
    pack_records(options_, pack_);
    const test::Bytes text = read_file(path(std::string(kIndexFile)));
    const RecordIndex index = index_from_json(std::string(text.begin(), text.end()), "index");
    ASSERT_GE(index.parts[0].shards.size(), 2u);
    const RecordSet set(pack_.directory, index, 0);
    const int64_t second = index.parts[0].shards[0].records;
    const auto read = [&](int64_t record) { return set.read(record, [](auto) noexcept {}); };
    for (int64_t i = 0; i < set.count(); ++i) ASSERT_EQ(read(i), RecordState::whole);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    change(name, kRecordAlignment);
    const int64_t changed = std::string_view(name) == "train-00000.records" ? 0 : second;
    const int64_t other = second - changed;
    bool noticed = false;
    const auto shards = static_cast<int64_t>(index.parts[0].shards.size());
    for (int64_t i = 0; i < 64 * shards / 2 && !noticed; ++i) {
      noticed = read(changed) == RecordState::damaged;
      ASSERT_EQ(read(other), RecordState::whole);
    }
    EXPECT_TRUE(noticed || read(changed) == RecordState::damaged) << name;
  }
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
