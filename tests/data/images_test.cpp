#include "data/images/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>

#include "data/images/image_writer.h"
#include "data/images/inspection.h"
#include "data/prefetch.h"
#include "data/stop.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An image of one value, as PNG: what comes out is exact.
test::Bytes plain(uint8_t value, int64_t height = 4, int64_t width = 4) {
  return png_bytes({height, width, 1}, std::vector<uint8_t>(static_cast<size_t>(height * width), value));
}

class Images : public ::testing::Test {
 protected:
  Images() {
    options_.kind = DataKind::images;
    options_.directory = directory_.path();
    options_.images.train = "train";
    options_.images.channels = 1;
  }
  void add(const std::string& name, const test::Bytes& bytes) {
    fs::create_directories(fs::path(directory_ / name).parent_path());
    write_file(directory_ / name, bytes);
  }
  static float first_value(const Dataset& data, const SampleKey& key) {
    std::vector<float> image(static_cast<size_t>(data.fields()[0].spec.shape.count()));
    std::array<std::byte*, 2> to{reinterpret_cast<std::byte*>(image.data()), nullptr};
    data.read(key, to);
    return image.front() * 255;
  }
  static int label(const Dataset& data, int64_t sample) {
    int32_t label = -7;
    std::array<std::byte*, 2> to{nullptr, reinterpret_cast<std::byte*>(&label)};
    data.read(sample, to);
    return label;
  }
  static std::vector<float> values(const Dataset& data) {
    std::vector<float> all;
    for (int64_t i = 0; i < data.size(); ++i) all.push_back(std::round(first_value(data, i)));
    return all;
  }
  std::string error() {
    return message_of<DataError>([&] { open_datasets(options_); });
  }

  TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(Images, ThatArePredictedNeedNoClass) {
  add("train/cat/a.png", plain(1));
  add("train/dog/b.png", plain(2));
  options_.encodings = open_datasets(options_).train->encodings();
  options_.trains = false;
  add("new/z.png", plain(5));
  add("new/dog/y.png", plain(4));
  add("new/monday/x.png", plain(3));
  options_.images.eval = "new";
  EXPECT_THAT(error(), HasSubstr("monday"));
  options_.may_lack_truth = true;
  auto data = open_datasets(options_).eval;
  EXPECT_THAT(values(*data), ElementsAre(4, 3, 5));
  EXPECT_EQ(label(*data, 0), 1);
  EXPECT_EQ(label(*data, 1), -1);
  EXPECT_EQ(label(*data, 2), -1);
  EXPECT_THAT(data->class_names(), ElementsAre("cat", "dog"));

  options_.images.eval = "";
  options_.images.eval_list = "list.txt";
  const auto list = [&](const std::string& text) { write_file(directory_ / "list.txt", text); };
  list("new/z.png\nnew/dog/y.png\tdog\n");
  data = open_datasets(options_).eval;
  EXPECT_EQ(label(*data, 0), -1);
  EXPECT_EQ(label(*data, 1), 1);
  list("new/z.png\tfox\n");
  EXPECT_THAT(error(), HasSubstr("fox"));
  list("new/z.png\n");
  options_.may_lack_truth = false;
  EXPECT_THAT(error(), HasSubstr("list.txt:1"));
}

TEST_F(Images, TakeClassesFromFoldersInSortedOrder) {
  add("train/dog/b.png", plain(3));
  add("train/cat/deep/er/z.PNG", plain(2));
  add("train/cat/a.jpg", plain(1));  // the content decides
  add("train/cat/notes.txt", {1});
  add("train/cat/.hidden.png", {1});
  add("train/.cache/x.png", {1});
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.eval, nullptr);
  EXPECT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.train->classes(), 2);
  EXPECT_THAT(data.train->class_names(), ElementsAre("cat", "dog"));
  EXPECT_THAT(values(*data.train), ElementsAre(1, 2, 3));
  EXPECT_EQ(label(*data.train, 0), 0);
  EXPECT_EQ(label(*data.train, 2), 1);
  EXPECT_THAT(data.train->sample_name(1), HasSubstr("cat/deep/er/z.PNG"));
}

TEST_F(Images, EvaluateOnAnotherFolderWithTheSameClasses) {
  add("train/cat/a.png", plain(1));
  add("train/dog/b.png", plain(2));
  add("val/dog/c.png", plain(3));
  options_.images.eval = "val";
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.eval->classes(), 2);
  EXPECT_EQ(label(*data.eval, 0), 1);
  options_.trains = false;  // the training folder still says what the classes are
  EXPECT_EQ(label(*open_datasets(options_).eval, 0), 1);
  fs::remove_all(directory_ / "train");
  EXPECT_EQ(label(*open_datasets(options_).eval, 0), 0);
  options_.encodings = data.train->encodings();  // of the model
  EXPECT_EQ(label(*open_datasets(options_).eval, 0), 1);
  options_.encodings.clear();
  options_.images.classes = {"ant", "cat", "dog"};
  EXPECT_EQ(label(*open_datasets(options_).eval, 0), 2);
  options_.images.classes = {"ant", "cat"};
  EXPECT_THAT(error(), HasSubstr("dog"));
}

TEST_F(Images, TakeListsOfPathsAndClasses) {
  add("x/a b.png", plain(1));
  add("x/c.png", plain(2));
  options_.images.train.clear();
  options_.images.train_list = "list.txt";
  write_file(directory_ / "list.txt", std::string("x/a b.png 2\r\n\nx/c.png\t0"));
  auto data = open_datasets(options_);
  EXPECT_EQ(data.train->classes(), 3);
  EXPECT_TRUE(data.train->class_names().empty());
  EXPECT_EQ(label(*data.train, 0), 2);
  EXPECT_EQ(label(*data.train, 1), 0);
  write_file(directory_ / "list.txt", std::string("x/a b.png\tsea\nx/c.png\tland\n"));
  data = open_datasets(options_);
  EXPECT_THAT(data.train->class_names(), ElementsAre("land", "sea"));
  EXPECT_EQ(label(*data.train, 0), 1);
  write_file(directory_ / "list.txt", std::string("x/a\n"));
  EXPECT_THAT(error(), HasSubstr("list.txt:1"));
  write_file(directory_ / "list.txt", std::string("\n"));
  EXPECT_THAT(error(), HasSubstr("list.txt"));
}

TEST_F(Images, TakeListsWithAByteOrderMark) {
  add("a.png", plain(1));
  options_.images.train.clear();
  options_.images.train_list = "list.txt";
  write_file(directory_ / "list.txt", std::string("\xef\xbb\xbf"
                                                  "a.png\t0\n"));
  EXPECT_THAT(values(*open_datasets(options_).train), ElementsAre(1));
}

TEST_F(Images, LookForAHeaderNoFurtherThanOneIs) {
  for (const size_t fill : {size_t{5000}, size_t{3} << 20}) {
    test::Bytes bytes{0xff, 0xd8};
    bytes.resize(fill, 0xff);
    add("train/cat/a.jpg", bytes);
    EXPECT_THAT(error(), HasSubstr("a.jpg"));
  }
  test::Bytes few = jpeg_bytes({4, 4, 1}, std::vector<uint8_t>(16, 9));
  few.insert(few.begin() + 2, 1000, 0xff);
  add("train/cat/a.jpg", few);
  EXPECT_EQ(open_datasets(options_).train->size(), 1);
  test::Bytes segments{0xff, 0xd8};
  for (int i = 0; i < 100'000; ++i) segments.insert(segments.end(), {0xff, 0xec, 0, 2});
  add("train/cat/a.jpg", segments);
  EXPECT_THAT(error(), HasSubstr("a.jpg"));
}

TEST_F(Images, DivideEachClassByNamesAndSeed) {
  for (int i = 0; i < 20; ++i) add("train/a/" + std::to_string(i) + ".png", plain(static_cast<uint8_t>(i)));
  for (int i = 20; i < 30; ++i) add("train/b/" + std::to_string(i) + ".png", plain(static_cast<uint8_t>(i)));
  options_.images.eval_fraction = 0.2;
  const auto data = open_datasets(options_);
  const auto eval = values(*data.eval), train = values(*data.train);
  EXPECT_EQ(std::ranges::count_if(eval, [](float v) { return v < 20; }), 4);
  EXPECT_EQ(eval.size(), 6u);
  std::set<float> all(eval.begin(), eval.end());
  all.insert(train.begin(), train.end());
  EXPECT_EQ(all.size(), 30u);
  EXPECT_EQ(values(*open_datasets(options_).eval), eval);
  const uint64_t before = data.train->identity();
  options_.images.split_seed = 2;
  const auto other = open_datasets(options_);
  EXPECT_NE(values(*other.eval), eval);
  EXPECT_NE(other.train->identity(), before);
}

TEST_F(Images, HaveTheIdentityOfTheirContent) {
  add("train/a/x.png", plain(1));
  add("train/b/y.png", plain(2));
  const uint64_t before = open_datasets(options_).train->identity();
  fs::rename(directory_ / "train", directory_ / "moved");
  options_.images.train = "moved";
  EXPECT_EQ(open_datasets(options_).train->identity(), before);
  add("moved/b/y.png", plain(3));
  EXPECT_NE(open_datasets(options_).train->identity(), before);
}

TEST_F(Images, MustAllBecomeOfOneSize) {
  add("train/a/x.png", plain(1));
  add("train/a/y.png", plain(2, 5, 6));
  const std::string message = message_of<ConfigError>([&] { open_datasets(options_); });
  EXPECT_THAT(message, HasSubstr("y.png"));
  EXPECT_THAT(message, HasSubstr("5x6"));
  options_.transforms = {ResizeOptions{.height = 3, .width = 2}};
  EXPECT_EQ(open_datasets(options_).train->fields()[0].spec.shape, (Shape{3, 2, 1}));
  options_.transforms = {CenterCropOptions{5, 5}};
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }), HasSubstr("x.png"));
}

TEST_F(Images, AreNotAllLookedAtByWhoIsAskedToStop) {
  for (int i = 0; i < 200; ++i) add("train/cat/" + std::to_string(i) + ".png", plain(1));
  static std::atomic<int> questions = 0;
  options_.stop_requested = [] { return ++questions > 2; };
  try {
    open_datasets(options_);
    FAIL() << "it went on";
  } catch (const StopRequested& stop) {
    EXPECT_EQ(stop.code(), ExitCode::terminated);
  }
  options_.stop_requested = [] { return false; };
  EXPECT_EQ(open_datasets(options_).train->size(), 200);
}

TEST_F(Images, RefuseRandomEvaluation) {
  add("train/a/x.png", plain(1));
  options_.eval_transforms = {FlipOptions{}};
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options_); }), HasSubstr("flip"));
}

TEST_F(Images, NameDamageByFileSampleAndByte) {
  add("train/a/x.png", plain(1));
  add("train/a/line\nbreak.png", {1, 2, 3});
  EXPECT_THAT(error(), AllOf(HasSubstr("line\\x0abreak.png"), HasSubstr("sample 0"), HasSubstr("byte 0")));
  options_.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(options_);
  EXPECT_EQ(data.train->size(), 1);
  EXPECT_EQ(data.train->damage(), (Damage{1, {}}));
  fs::remove(directory_ / "train/a/x.png");
  EXPECT_THAT(error(), HasSubstr("train"));  // nothing is left
}

TEST_F(Images, RefuseWhatIsTooLargeByItsHeader) {
  auto bomb = plain(1);
  const auto put = [&](size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) bomb[at + i] = static_cast<uint8_t>(value >> (24 - 8 * i));
  };
  put(16, 30000);
  put(20, 30000);
  add("train/a/bomb.png", bomb);
  EXPECT_THAT(error(), AllOf(HasSubstr("bomb.png"), HasSubstr("30000x30000"), HasSubstr("most_pixels")));
}

TEST_F(Images, RefuseAClassWithoutImages) {
  add("train/a/x.png", plain(1));
  fs::create_directories(directory_ / "train/b");
  EXPECT_THAT(error(), HasSubstr("train/b"));
  options_.on_damage = DamagePolicy::skip;
  EXPECT_EQ(open_datasets(options_).train->classes(), 2);
  fs::remove_all(directory_ / "train");
  fs::create_directories(directory_ / "train");
  EXPECT_THAT(error(), HasSubstr("train"));
}

TEST_F(Images, ReplaceDamagedPixelsByARuleOfTheSampleAlone) {
  auto broken = plain(2);
  broken[broken.size() - 22] ^= 0xff;  // within the compressed pixels
  add("train/a/1.png", plain(1));
  add("train/a/2.png", broken);
  add("train/b/3.png", plain(3));
  auto data = open_datasets(options_);
  EXPECT_THAT(message_of<DataError>([&] { first_value(*data.train, 1); }),
              AllOf(HasSubstr("2.png"), HasSubstr("sample 1"), HasSubstr("byte")));
  options_.on_damage = DamagePolicy::skip;
  data = open_datasets(options_);
  EXPECT_EQ(label(*data.train, 1), 1);  // also without its image
  EXPECT_THAT(values(*data.train), ElementsAre(1, 3, 3));
  EXPECT_EQ(data.train->damage(), (Damage{0, {1}}));
}

TEST_F(Images, NoticeFilesThatChange) {
  add("train/a/x.png", plain(1));
  const auto data = open_datasets(options_);
  add("train/a/x.png", plain(200, 30, 30));
  EXPECT_THAT(message_of<DataError>([&] { first_value(*data.train, 0); }), HasSubstr("changed"));
  fs::remove(directory_ / "train/a/x.png");
  EXPECT_THROW(first_value(*data.train, 0), IoError);
}

/// All bytes that a run reads, in the order of positions.
std::vector<float> stream_of(const Dataset& data, int threads, int64_t micro_batch, int64_t samples) {
  const SampleOrder order(11, data.size(), true);
  const auto next = [micro_batch](SampleSpan span) {
    return SampleSpan{span.first_position + micro_batch, micro_batch};
  };
  Prefetcher prefetcher(data, order, next, {.threads = threads, .depth = 3, .fields = {"image"}});
  const auto each = data.fields()[0].spec.shape.count();
  std::vector<float> all(static_cast<size_t>(samples * each));
  prefetcher.start({0, micro_batch});
  for (int64_t position = 0; position < samples; position += micro_batch) {
    const Tensor tensor{all.data() + position * each, data.fields()[0].spec.shape.batched(micro_batch),
                        DType::float32};
    prefetcher.take({position, micro_batch}, std::span(&tensor, 1));
  }
  return all;
}

TEST_F(Images, AreTheSameBitsOnAnyThreadsAndInAnyBatches) {
  const ImageShape shape{40, 50, 3};
  for (int i = 0; i < 12; ++i) {
    std::vector<uint8_t> pixels(static_cast<size_t>(shape.count()));
    for (size_t k = 0; k < pixels.size(); ++k)
      pixels[k] = static_cast<uint8_t>(k * static_cast<size_t>(i + 1) / 40);
    add("train/" + std::to_string(i % 3) + "/" + std::to_string(i) + ".jpg", jpeg_bytes(shape, pixels));
  }
  options_.images.channels = 3;
  options_.transforms = {RandomResizedCropOptions{.height = 16, .width = 12},
                         FlipOptions{},
                         AffineOptions{.degrees = 10},
                         ColorJitterOptions{0.2, 0.2, 0.2, 0.1},
                         MixupOptions{.probability = 0.5},
                         CutmixOptions{.probability = 0.4},
                         EraseOptions{},
                         NormalizeOptions{{0.5}, {0.5}}};
  const auto data = open_datasets(options_);
  const auto expected = stream_of(*data.train, 0, 1, 48);  // four epochs
  for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const int64_t micro_batch : {1, 4, 8})
      EXPECT_EQ(stream_of(*data.train, threads, micro_batch, 48), expected) << threads << " " << micro_batch;
  EXPECT_NE(std::vector<float>(expected.begin(), expected.begin() + 576),
            std::vector<float>(expected.begin() + 12 * 576, expected.begin() + 13 * 576));
}

}  // namespace
}  // namespace lockstep::data
