#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_testing.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::loaded;
using test::message_of;
using test::read_file;
using test::save;
using test::SmallState;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kModel = "model-00001-of-00001.safetensors";
const std::string kOptimizer = "optimizer-00001-of-00001.safetensors";

std::vector<int64_t> steps_in(const std::string& directory) {
  std::vector<int64_t> steps;
  for (const auto& found : find_checkpoints(directory)) steps.push_back(found.step);
  return steps;
}

TEST(Checkpoint, LoadsWhatWasSaved) {
  const TemporaryDirectory folder;
  const SmallState state(3);
  const auto path = save(folder / "checkpoints", 12, state);
  EXPECT_EQ(path, folder / "checkpoints/step-00000012");
  const Checkpoint checkpoint(path);
  EXPECT_EQ(loaded(checkpoint), state);
  EXPECT_EQ(checkpoint.manifest().step, 12);
  EXPECT_EQ(checkpoint.manifest().params_hash, parameters_hash(state.parameters()));
  EXPECT_THAT(list_directory(path),
              ElementsAre("manifest.json", kModel, "model.safetensors.index.json", kOptimizer));
}

TEST(Checkpoint, HashesTensorsPieceByPiece) {
  const TemporaryDirectory folder;
  // Two pieces and a half, and half a chunk.
  std::vector<float> moments(static_cast<size_t>(40 * kHashChunkElements + kHashChunkElements / 2));
  for (size_t i = 0; i < moments.size(); ++i) moments[i] = static_cast<float>(i % 1013);
  const NamedTensor large{"table.momentum", DType::float32, Shape{std::ssize(moments)}, moments.data()};
  const SmallState state(3);
  CheckpointWriter writer(folder.path(), 1, posix_file_system());
  writer.begin();
  Manifest manifest = state.manifest(1);
  const std::vector<NamedTensor> optimizer{large};
  manifest.files = {writer.write_shard(FileKind::model, 1, 1, state.parameters()),
                    writer.write_shard(FileKind::optimizer, 1, 1, optimizer)};
  const Checkpoint checkpoint(writer.commit(std::move(manifest)));
  int pieces = 0;
  EXPECT_EQ(checkpoint.hash_of(FileKind::optimizer, checkpoint.tensors(FileKind::optimizer).at(0),
                               [&] { ++pieces; }),
            tensor_hash(large));
  EXPECT_EQ(pieces, 3);
}

TEST(Checkpoint, IndexTellsOtherProgramsWhereTensorsAre) {
  const TemporaryDirectory folder;
  const auto path = save(folder.path(), 1, SmallState(1));
  std::ifstream file(path + "/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(file);
  EXPECT_EQ(index, nlohmann::json::parse(R"({"metadata": {"total_size": 32},
      "weight_map": {"fc.weight": "model-00001-of-00001.safetensors", "fc.bias": "model-00001-of-00001.safetensors"}})"));
}

TEST(Checkpoint, SeveralWritersShareOne) {
  const TemporaryDirectory folder;
  const SmallState state(5);
  CheckpointWriter first(folder.path(), 4), second(folder.path(), 4);
  first.begin();
  auto manifest = state.manifest(4);
  const auto parameters = state.parameters();
  const auto travelled = to_text(second.write_shard(FileKind::model, 2, 2, std::span(parameters).subspan(1)));
  manifest.files.push_back(first.write_shard(FileKind::model, 1, 2, std::span(parameters).first(1)));
  manifest.files.push_back(first.write_shard(FileKind::optimizer, 1, 1, state.state()));
  EXPECT_THROW(first.commit(manifest), InternalError) << "shard 2 of 2 is not recorded";
  EXPECT_THAT(steps_in(folder.path()), IsEmpty());
  manifest.files.push_back(file_record_from_text(travelled));
  const Checkpoint checkpoint(first.commit(manifest));
  EXPECT_EQ(loaded(checkpoint), state);
}

TEST(Checkpoint, LoadsPartsByName) {
  const TemporaryDirectory folder;
  SmallState state(1);
  state.weight = {1, 2, 3, 4, 5, 6};
  const Checkpoint checkpoint(save(folder.path(), 1, state));
  float range[2] = {}, column[2] = {};
  checkpoint.load(FileKind::model,
                  std::vector<TensorDestination>{
                      {"fc.weight", DType::float32, Shape{2, 3}, range, tensor::Part::range(3, 2)},
                      {"fc.weight", DType::float32, Shape{2, 3}, column,
                       tensor::Part::rectangle(Shape{2, 3}, {0, 2}, {1, 1})}});
  EXPECT_THAT(range, ElementsAre(4, 5));
  EXPECT_THAT(column, ElementsAre(2, 5));
  float bias[2] = {};
  const std::vector<TensorDestination> only_bias{{"fc.bias", DType::float32, Shape{2}, bias}};
  checkpoint.load(FileKind::model, only_bias);
  EXPECT_THAT(bias, ElementsAre(2, 3));
}

TEST(Checkpoint, NamesEveryTensorThatDoesNotFit) {
  const TemporaryDirectory folder;
  const Checkpoint checkpoint(save(folder.path(), 1, SmallState(1)));
  const std::vector<TensorRecord> expected{{"fc.weight", DType::float32, Shape{3, 2}},
                                           {"fc2.weight", DType::float32, Shape{1}}};
  const auto message =
      message_of<CheckpointError>([&] { checkpoint.require_exactly(FileKind::model, expected); });
  EXPECT_THAT(message, AllOf(HasSubstr("'fc.weight' is F32 [2, 3], expected F32 [3, 2]"),
                             HasSubstr("'fc2.weight' is missing"), HasSubstr("'fc.bias'")));
  checkpoint.require_exactly(FileKind::model, checkpoint.tensors(FileKind::model));

  float bias[2] = {7, 7};
  const std::vector<TensorDestination> destinations{{"fc.bias", DType::float32, Shape{2}, bias},
                                                    {"absent", DType::float32, Shape{2}, bias}};
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoint.load(FileKind::model, destinations); }),
              HasSubstr("'absent' is missing"));
  EXPECT_THAT(bias, ElementsAre(7, 7)) << "nothing is written before everything is checked";
  const std::vector<TensorDestination> as_bytes{{"fc.bias", DType::uint8, Shape{2}, bias}};
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoint.load(FileKind::model, as_bytes); }),
              HasSubstr("expected U8 [2]"));
}

TEST(FindCheckpoints, ListsNewestFirstAndNothingElse) {
  const TemporaryDirectory folder;
  for (const int64_t step : {5, 100, 20}) save(folder.path(), step, SmallState(1));
  for (const auto* name : {"step-00000200.tmp", "step-1", "step-", "best", "step-0000003x", "step--0000001"})
    fs::create_directory(folder / name);
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(100, 20, 5));
  EXPECT_THAT(steps_in(folder / "absent"), IsEmpty());
  EXPECT_EQ(checkpoint_folder_name(123456789), "step-123456789");
  EXPECT_EQ(step_of_folder_name("step-123456789"), 123456789);
}

TEST(LoadLatestValid, WalksBackOverDamagedOnesAndNamesThem) {
  const TemporaryDirectory folder;
  for (const int64_t step : {1, 2, 3, 4}) save(folder.path(), step, SmallState(static_cast<float>(step)));
  fs::remove(folder / "step-00000004/manifest.json");
  Bytes model = read_file(folder / ("step-00000003/" + kModel));
  model.back() ^= 1;
  write_file(folder / ("step-00000003/" + kModel), model);
  std::vector<std::string> refused, reasons;
  const auto checkpoint =
      load_latest_valid(folder.path(), [&](const std::string& path, const std::string& reason) {
        refused.push_back(path);
        reasons.push_back(reason);
      });
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->manifest().step, 2);
  EXPECT_THAT(refused, ElementsAre(folder / "step-00000004", folder / "step-00000003"));
  EXPECT_THAT(reasons[0], HasSubstr("manifest.json"));
  EXPECT_THAT(reasons[1], HasSubstr(kModel + ": expected checksums"));
}

TEST(Checkpoint, TellsBeforeEachPieceThatItReads) {
  const TemporaryDirectory folder;
  // 1 MB: four pieces of 256 KiB, the last one with the header that comes first, and the end.
  const std::vector<float> values(250'000, 1.0f);
  const std::vector<NamedTensor> tensors{{"w", DType::float32, Shape{250'000}, values.data()}};
  CheckpointWriter writer(folder.path(), 1);
  writer.begin();
  Manifest manifest;
  manifest.step = 1;
  manifest.files = {writer.write_shard(FileKind::model, 1, 1, tensors)};
  const std::string path = writer.commit(std::move(manifest));
  int reads = 0;
  const Checkpoint checkpoint(path, [&] { ++reads; });
  EXPECT_EQ(reads, 4 + 1 + 1 + 1) << "the model and its end, the index and its end";
  std::vector<float> loaded(250'000);
  checkpoint.load(FileKind::model,
                  std::vector<TensorDestination>{{"w", DType::float32, Shape{250'000}, loaded.data()}},
                  [&] { ++reads; });
  EXPECT_EQ(reads, 8);
  EXPECT_EQ(loaded, values);
  EXPECT_TRUE(load_latest_valid(folder.path(), nullptr, [&] { ++reads; }));
  EXPECT_EQ(reads, 15);
}

TEST(LoadLatestValid, SaysWhereNoneIsLeft) {
  const TemporaryDirectory folder;
  int refused = 0;
  const auto count = [&](const std::string&, const std::string&) { ++refused; };
  EXPECT_FALSE(load_latest_valid(folder.path(), count));
  EXPECT_EQ(refused, 0);
  save(folder.path(), 1, SmallState(1));
  fs::remove(folder / ("step-00000001/" + kOptimizer));
  EXPECT_FALSE(load_latest_valid(folder.path(), count));
  EXPECT_EQ(refused, 1);
}

TEST(Checkpoint, FilesSwappedBetweenCheckpointsAreRefusedByName) {
  for (const auto& name : {kModel, kOptimizer, std::string("manifest.json")}) {
    const TemporaryDirectory folder;
    const auto first = save(folder.path(), 1, SmallState(1)), second = save(folder.path(), 2, SmallState(2));
    const Bytes one = read_file(first + "/" + name), two = read_file(second + "/" + name);
    write_file(first + "/" + name, two);
    write_file(second + "/" + name, one);
    EXPECT_THAT(message_of<CheckpointError>([&] { Checkpoint{first}; }), HasSubstr(first + "/" + name));
    EXPECT_THAT(message_of<CheckpointError>([&] { Checkpoint{second}; }), HasSubstr(second + "/" + name));
  }
}

TEST(Checkpoint, AFolderUnderAnotherNameIsStillACheckpoint) {
  const TemporaryDirectory folder;
  fs::rename(save(folder.path(), 1, SmallState(1)), folder / "best");
  EXPECT_EQ(Checkpoint(folder / "best").manifest().step, 1);
  EXPECT_EQ(Checkpoint(folder / "best/").manifest().step, 1);
  fs::rename(folder / "best", folder / "step-00000009");
  EXPECT_THAT(message_of<CheckpointError>([&] { Checkpoint{folder / "step-00000009"}; }),
              HasSubstr("step 9"));
  EXPECT_THAT(message_of<CheckpointError>([&] { Checkpoint{folder / "step-00000009/"}; }),
              HasSubstr("step 9"));
}

/// In how many shards the parameters lie.
class Damage : public ::testing::TestWithParam<int> {
 protected:
  std::string save_in_shards() {
    CheckpointWriter writer(folder_.path(), 1);
    writer.begin();
    Manifest manifest = state_.manifest(1);
    const auto parameters = state_.parameters();
    const size_t each = parameters.size() / static_cast<size_t>(GetParam());
    for (int shard = 0; shard < GetParam(); ++shard)
      manifest.files.push_back(
          writer.write_shard(FileKind::model, shard + 1, GetParam(),
                             std::span(parameters).subspan(static_cast<size_t>(shard) * each, each)));
    manifest.files.push_back(writer.write_shard(FileKind::optimizer, 1, 1, state_.state()));
    return writer.commit(std::move(manifest));
  }

  /// True where the checkpoint was accepted; it must then be the one that was saved.
  bool accepted() {
    try {
      const Checkpoint checkpoint(path_);
      EXPECT_EQ(loaded(checkpoint), state_);
      EXPECT_EQ(checkpoint.manifest(), manifest_);
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  }
  TemporaryDirectory folder_;
  SmallState state_{4};
  std::string path_ = save_in_shards();
  Manifest manifest_ = read_manifest(path_);
};
INSTANTIATE_TEST_SUITE_P(Shards, Damage, ::testing::Values(1, 2));

TEST_P(Damage, NoTruncationIsAccepted) {
  for (const auto& name : list_directory(path_)) {
    const std::string file = path_ + "/" + name;
    const Bytes bytes = read_file(file);
    for (size_t size = bytes.size(); size-- > 0;) {
      fs::resize_file(file, size);
      const bool only_newline = name == "manifest.json" && size == bytes.size() - 1;
      EXPECT_EQ(accepted(), only_newline) << name << " cut to " << size;
    }
    write_file(file, bytes);
  }
  EXPECT_TRUE(accepted());
}

TEST_P(Damage, NoBitFlipIsAcceptedWithOtherContent) {
  for (const auto& name : list_directory(path_)) {
    const std::string file = path_ + "/" + name;
    const Bytes bytes = read_file(file);
    int harmless = 0;
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes damaged = bytes;
      damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      write_file(file, damaged);
      harmless += accepted();
    }
    // Only blanks of the manifest can turn into other blanks; everything else is under a checksum.
    if (name != "manifest.json") {
      EXPECT_EQ(harmless, 0) << name;
    }
    write_file(file, bytes);
  }
}

TEST_P(Damage, FilesThatGrewOrVanishedAreRefused) {
  for (const auto& name : list_directory(path_)) {
    const std::string file = path_ + "/" + name;
    const Bytes bytes = read_file(file);
    Bytes longer = bytes;
    longer.push_back('x');
    write_file(file, longer);
    EXPECT_FALSE(accepted()) << name;
    fs::remove(file);
    EXPECT_FALSE(accepted()) << name;
    write_file(file, bytes);
  }
  write_file(path_ + "/notes.txt", std::string("somebody's"));
  EXPECT_TRUE(accepted()) << "files that the manifest does not name do not matter";
}

}  // namespace
}  // namespace lockstep::checkpoint
