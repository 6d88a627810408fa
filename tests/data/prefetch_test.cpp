#include "data/prefetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "base/half.h"
#include "data/allocation_counter.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::message_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Sample i has the image (i, i + 0.5) and the label i. Remembers who read, counts, and throws where told to.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : size_(size) {}
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return size_; }
  uint64_t identity() const override { return 1; }
  std::string description() const override { return "counting"; }
  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t sample = key.sample;
    if (sample == bad_sample) throw DataError("sample " + std::to_string(sample) + " is bad");
    if (destinations[0]) {
      auto* image = reinterpret_cast<float*>(destinations[0]);
      image[0] = static_cast<float>(sample);
      image[1] = static_cast<float>(sample) + 0.5f;
    }
    if (destinations[1]) *reinterpret_cast<int32_t*>(destinations[1]) = static_cast<int32_t>(sample);
    if (std::this_thread::get_id() == taker_) ++reads_by_taker;
    ++reads;
    reads.notify_all();
  }
  /// Blocks until `count` samples have been read.
  void wait_for_reads(int64_t count) const {
    for (int64_t now = reads; now < count; now = reads) reads.wait(now);
  }

  std::atomic<int64_t> bad_sample{-1};
  mutable std::atomic<int64_t> reads{0}, reads_by_taker{0};

 private:
  int64_t size_;
  std::thread::id taker_ = std::this_thread::get_id();
  std::vector<Field> fields_{{"image", {Shape{2}, DType::float32}}, {"label", {Shape{}, DType::int32}}};
};

SampleSpan following(SampleSpan span) { return {span.first_position + span.count, span.count}; }

/// Memory for one batch of a CountingDataset.
struct Batch {
  explicit Batch(int64_t count)
      : images(static_cast<size_t>(2 * count)),
        labels(static_cast<size_t>(count)),
        tensors{{images.data(), Shape{count, 2}, DType::float32},
                {labels.data(), Shape{count}, DType::int32}} {}
  std::vector<float> images;
  std::vector<int32_t> labels;
  std::vector<Tensor> tensors;
};

void expect_batch(const Batch& batch, const SampleOrder& order, int64_t first) {
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const auto sample = static_cast<int32_t>(order.sample(first + static_cast<int64_t>(i)));
    ASSERT_EQ(batch.labels[i], sample) << first << " " << i;
    ASSERT_EQ(batch.images[2 * i], static_cast<float>(sample));
    ASSERT_EQ(batch.images[2 * i + 1], static_cast<float>(sample) + 0.5f);
  }
}

TEST(Prefetcher, DeliversTheStreamForAnyThreadsAndDepth) {
  for (const int threads : {0, 1, 3})
    for (const int depth : {1, 2, 5}) {
      const CountingDataset data(23);
      const SampleOrder order(1, 23, true);
      Prefetcher prefetcher(data, order, following, {.threads = threads, .depth = depth});
      for (int64_t first = 0; first < 40 * 7; first += 7) {  // batches span epochs
        Batch batch(7);
        prefetcher.take({first, 7}, batch.tensors);
        expect_batch(batch, order, first);
      }
    }
}

TEST(Prefetcher, DeliversTheStreamWhileItsSizeAdapts) {
  const CountingDataset data(23);
  const SampleOrder order(1, 23, true);
  Prefetcher prefetcher(data, order, following, {.threads = 4, .depth = 8, .adapts = true});
  EXPECT_EQ(prefetcher.size(), (ReadAheadSize{1, 4}));
  for (int64_t first = 0; first < 4000 * 7; first += 7) {
    Batch batch(7);
    prefetcher.take({first, 7}, batch.tensors);
    expect_batch(batch, order, first);
    ASSERT_LE(prefetcher.size().threads, 4);
    ASSERT_LE(prefetcher.size().depth, 8);
  }
  EXPECT_GT(prefetcher.stage_times()[static_cast<size_t>(DataStage::read)], 0);
  Batch batch(7);
  prefetcher.take({70, 7}, batch.tensors);  // out of order
  expect_batch(batch, order, 70);
  prefetcher.take({77, 7}, batch.tensors);
  expect_batch(batch, order, 77);
}

TEST(StageTimer, CountsNoTimeTwice) {
  const StageTimes before = stage_times_of_thread();
  const auto begin = Clock::now();
  {
    const StageTimer outer(DataStage::transform);
    const StageTimer inner(DataStage::decode);
    const auto inner_begin = Clock::now();
    while (milliseconds_between(inner_begin, Clock::now()) < 5) {
    }
  }
  const double elapsed_ms = milliseconds_between(begin, Clock::now());
  const StageTimes after = stage_times_of_thread();
  const auto spent = [&](DataStage stage) {
    return after[static_cast<size_t>(stage)] - before[static_cast<size_t>(stage)];
  };
  EXPECT_GE(spent(DataStage::decode), 5);
  EXPECT_LE(spent(DataStage::decode) + spent(DataStage::transform), elapsed_ms + 1e-6);
}

TEST(Prefetcher, DeliversFieldsOfFloat32InTwoBytes) {
  // Up to 256, halves are exact in float16 and not in bfloat16: 200.5 lies between 200 and 201 and goes to
  // even.
  for (const DType dtype : {DType::bfloat16, DType::float16})
    for (const int threads : {0, 1, 2}) {
      const CountingDataset data(203);
      const SampleOrder order(1, 203, true);
      Prefetcher prefetcher(
          data, order, following,
          {.threads = threads, .depth = 2, .fields = {"label", "image"}, .float_type = dtype});
      for (int64_t first = 0; first < 30 * 7; first += 7) {
        std::vector<uint16_t> images(14);
        std::vector<int32_t> labels(7);
        const Tensor tensors[] = {{labels.data(), Shape{7}, DType::int32},
                                  {images.data(), Shape{7, 2}, dtype}};
        prefetcher.take({first, 7}, tensors);
        for (size_t i = 0; i < 7; ++i) {
          const auto sample = static_cast<float>(order.sample(first + static_cast<int64_t>(i)));
          ASSERT_EQ(labels[i], static_cast<int32_t>(sample));
          for (size_t e = 0; e < 2; ++e) {
            const float value = sample + 0.5f * static_cast<float>(e);
            ASSERT_EQ(images[2 * i + e],
                      dtype == DType::float16 ? float16(value).bits : bfloat16(value).bits);
          }
        }
      }
    }
}

TEST(Prefetcher, RefusesFloat32WhereTwoBytesAreDelivered) {
  const CountingDataset data(10);
  Prefetcher prefetcher(data, SampleOrder(1, 10, false), following,
                        {.threads = 0, .depth = 1, .float_type = DType::bfloat16});
  Batch batch(2);
  EXPECT_THAT(message_of<ConfigError>([&] {
                prefetcher.take({0, 2}, batch.tensors);
              }),
              Mentions("'image': ... bfloat16 ... [2, 2] ... float32 [2, 2]"));
}

TEST(Prefetcher, FollowsTheCallersOwnOrderOfSpans) {
  const CountingDataset data(1000);
  const SampleOrder order(1, 1000, false);
  // Two ranks' worth: spans of 4, every other one belonging to somebody else.
  const auto next = [](SampleSpan span) { return SampleSpan{span.first_position + 8, 4}; };
  Prefetcher prefetcher(data, order, next, {.threads = 2, .depth = 3});
  prefetcher.start({4, 4});
  for (int64_t first = 4; first < 400; first += 8) {
    Batch batch(4);
    prefetcher.take({first, 4}, batch.tensors);
    expect_batch(batch, order, first);
  }
}

TEST(Prefetcher, ReadsAheadOnItsOwnThreads) {
  const CountingDataset data(100);
  const SampleOrder order(1, 100, true);
  Prefetcher prefetcher(data, order, following, {.threads = 1, .depth = 4});
  prefetcher.start({0, 5});
  data.wait_for_reads(20);  // four batches, with nobody taking any
  for (int64_t first = 0; first < 20; first += 5) {
    Batch batch(5);
    prefetcher.take({first, 5}, batch.tensors);
    expect_batch(batch, order, first);
  }
  EXPECT_EQ(data.reads_by_taker, 0);
}

TEST(Prefetcher, JumpsAreReadAtOnceAndPredictedFromThereOn) {
  for (const int threads : {0, 1, 2}) {
    const CountingDataset data(50);
    const SampleOrder order(1, 50, true);
    Prefetcher prefetcher(data, order, following, {.threads = threads, .depth = 3});
    // Forwards, back for a replay, the same again, far ahead, another size.
    int64_t first = 0;
    for (const int64_t start : {0, 30, 12, 12, 5000}) {
      first = start;
      for (int i = 0; i < 6; ++i, first += 3) {
        Batch batch(3);
        prefetcher.take({first, 3}, batch.tensors);
        expect_batch(batch, order, first);
      }
    }
    Batch larger(9);
    prefetcher.take({first, 9}, larger.tensors);
    expect_batch(larger, order, first);
  }
}

TEST(Prefetcher, ErrorsOfReadersReachTheTakerAndLaterBatchesWork) {
  for (const int threads : {0, 2}) {
    CountingDataset data(100);
    data.bad_sample = 9;
    const SampleOrder order(1, 100, false);
    Prefetcher prefetcher(data, order, following, {.threads = threads, .depth = 2});
    for (int64_t first = 0; first < 20; first += 4) {
      Batch batch(4);
      if (first == 8)
        EXPECT_THAT(message_of<DataError>([&] {
                      prefetcher.take({first, 4}, batch.tensors);
                    }),
                    HasSubstr("sample 9 is bad"));
      else
        prefetcher.take({first, 4}, batch.tensors);
      if (first != 8) expect_batch(batch, order, first);
    }
  }
}

TEST(Prefetcher, AnErrorThatWasReadAheadAndDiscardedIsForgotten) {
  CountingDataset data(100);
  data.bad_sample = 3;
  const SampleOrder order(1, 100, false);
  Prefetcher prefetcher(data, order, following, {.threads = 1, .depth = 2});
  prefetcher.start({0, 2});
  data.wait_for_reads(3);  // 0, 1 and 2; 3 throws
  for (int64_t first = 40; first < 60; first += 2) {
    Batch batch(2);
    prefetcher.take({first, 2}, batch.tensors);
    expect_batch(batch, order, first);
  }
}

TEST(Prefetcher, StopsWithoutBeingTakenFrom) {
  for (int i = 0; i < 20; ++i) {
    const CountingDataset data(1000);
    Prefetcher prefetcher(data, SampleOrder(1, 1000, true), following, {.threads = 3, .depth = 4});
    if (i % 2) prefetcher.start({0, 500});
  }
}

TEST(Prefetcher, AllocatesNothingPerBatchOnceWarm) {
  for (const int threads : {0, 1, 2}) {
    const CountingDataset data(64);
    Prefetcher prefetcher(data, SampleOrder(1, 64, true), following, {.threads = threads, .depth = 2});
    Batch batch(8);
    int64_t first = 0;
    const auto take = [&](int batches) {
      for (int i = 0; i < batches; ++i, first += 8) prefetcher.take({first, 8}, batch.tensors);
    };
    prefetcher.start({0, 8});
    if (threads > 0) data.wait_for_reads(16);  // both slots have held a batch
    take(2);
    const int64_t before = test::allocation_count;
    take(50);
    EXPECT_EQ(test::allocation_count - before, 0) << threads;
  }
}

/// Memory that is exchanged, as that of a device without a device.
TEST(Prefetcher, ExchangesMemoryInsteadOfCopying) {
  for (const int threads : {0, 1, 3}) {
    const CountingDataset data(23);
    const SampleOrder order(1, 23, true);
    const auto device = device::make_cpu_device();
    const auto make = [&](int64_t size_bytes) { return device->allocate_host(size_bytes); };
    Prefetcher prefetcher(data, order, following,
                          {.threads = threads, .depth = 3, .allocate = make, .most_samples = 7});
    EXPECT_EQ(prefetcher.places().offsets, (std::vector<int64_t>{0, 256}));
    EXPECT_EQ(prefetcher.places().size_bytes, 512);
    EXPECT_EQ(device->memory_use(device::MemoryKind::host).allocations, 0);  // until it is needed
    device::Buffer buffers[2] = {make(512), make(512)};
    std::set<const std::byte*> seen;
    int64_t first = 0;
    for (int i = 0; i < 40; ++i) {
      const int64_t count = 1 + i % 7;  // the prediction is of another size, but for one
      device::Buffer& buffer = buffers[i % 2];
      prefetcher.exchange({first, count}, buffer);
      seen.insert(buffer.data());
      Batch batch(count);
      std::memcpy(batch.images.data(), buffer.data(), batch.images.size() * sizeof(float));
      std::memcpy(batch.labels.data(), buffer.data() + 256, batch.labels.size() * sizeof(int32_t));
      expect_batch(batch, order, first);
      first += count;
    }
    const int64_t before = data.reads;
    prefetcher.start({first, 7});
    if (threads > 0) data.wait_for_reads(before + 7);
    for (int i = 0; i < 40; ++i, first += 7) {
      prefetcher.exchange({first, 7}, buffers[i % 2]);
      seen.insert(buffers[i % 2].data());
      Batch batch(7);
      std::memcpy(batch.images.data(), buffers[i % 2].data(), batch.images.size() * sizeof(float));
      std::memcpy(batch.labels.data(), buffers[i % 2].data() + 256, batch.labels.size() * sizeof(int32_t));
      expect_batch(batch, order, first);
    }
    EXPECT_EQ(seen.size() > 2, threads > 0);  // memory that was read ahead into came out
    EXPECT_EQ(device->memory_use(device::MemoryKind::host).allocations, threads > 0 ? 3 + 2 : 2);
  }
}

TEST(Prefetcher, ExchangesNoMoreMemoryThanItsSizeNeeds) {
  const CountingDataset data(23);
  const SampleOrder order(1, 23, true);
  const auto device = device::make_cpu_device();
  const auto make = [&](int64_t size_bytes) { return device->allocate_host(size_bytes); };
  const auto made = [&] { return device->memory_use(device::MemoryKind::host).allocations; };
  Prefetcher prefetcher(data, order, following,
                        {.threads = 4, .depth = 100, .adapts = true, .allocate = make, .most_samples = 7});
  ASSERT_EQ(prefetcher.size(), (ReadAheadSize{1, 4}));
  prefetcher.start({0, 7});
  EXPECT_EQ(made(), 4);
  device::Buffer buffer = make(512);
  int most = 4;
  // More batches than slots, so that memory goes around; sometimes what was read ahead is discarded.
  for (int64_t i = 0; i < 2000; ++i) {
    const int64_t first = (i + i / 50) * 7;
    prefetcher.exchange({first, 7}, buffer);
    most = std::max(most, prefetcher.size().depth);
    for (int64_t sample = 0; sample < 7; ++sample)
      ASSERT_EQ(reinterpret_cast<const int32_t*>(buffer.data() + 256)[sample],
                static_cast<int32_t>(order.sample(first + sample)));
    ASSERT_EQ(made(), 1 + most);
  }
}

TEST(Prefetcher, RequiresTheFieldsThatAreExchanged) {
  const CountingDataset data(10);
  const auto device = device::make_cpu_device();
  const Prefetcher prefetcher(
      data, SampleOrder(1, 10, false), following,
      {.allocate = [&](int64_t size_bytes) { return device->allocate_host(size_bytes); }, .most_samples = 8});
  const Tensor image{nullptr, Shape{8, 2}, DType::float32}, label{nullptr, Shape{8}, DType::int32};
  const auto refusal = [&](const Tensor& first, const Tensor& second) {
    return message_of<ConfigError>([&] { prefetcher.require_fields(std::vector{first, second}); });
  };
  prefetcher.require_fields(std::vector{image, label});
  // Of the same bytes, or of as many when they are rounded up.
  EXPECT_THAT(refusal(image, {nullptr, Shape{8}, DType::float32}), HasSubstr("field 'label'"));
  EXPECT_THAT(refusal({nullptr, Shape{8, 2}, DType::bfloat16}, label), HasSubstr("field 'image'"));
  EXPECT_THAT(refusal(label, image), HasSubstr("field 'image'"));
}

TEST(Prefetcher, ErrorsLeaveWhatIsExchangedAlone) {
  CountingDataset data(10);
  data.bad_sample = 3;
  const auto device = device::make_cpu_device();
  const auto make = [&](int64_t size_bytes) { return device->allocate_host(size_bytes); };
  for (const int threads : {0, 1}) {
    Prefetcher prefetcher(data, SampleOrder(1, 10, false), following,
                          {.threads = threads, .depth = 2, .allocate = make, .most_samples = 2});
    prefetcher.start({0, 2});
    device::Buffer buffer = make(512);
    prefetcher.exchange({0, 2}, buffer);
    const std::byte* before = buffer.data();
    EXPECT_THROW(prefetcher.exchange({2, 2}, buffer), DataError);
    EXPECT_EQ(buffer.data(), before);
    prefetcher.exchange({4, 2}, buffer);
    EXPECT_EQ(reinterpret_cast<const int32_t*>(buffer.data() + 256)[1], 5);
  }
}

/// Leaves memory as it was, so that it shows what others have done to it.
class SilentDataset : public Dataset {
 public:
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return 100; }
  int64_t classes() const override { return 1; }
  uint64_t identity() const override { return 1; }
  std::string description() const override { return "silent"; }
  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    auto* value = reinterpret_cast<int32_t*>(destinations[0]);
    if (key.sample < 8) *value = static_cast<int32_t>(100 + key.sample);
    ++reads;
    reads.notify_all();
  }
  /// Blocks until `count` samples have been read.
  void wait_for_reads(int64_t count) const {
    for (int64_t now = reads; now < count; now = reads) reads.wait(now);
  }

  mutable std::atomic<int64_t> reads{0};

 private:
  std::vector<Field> fields_{{"value", {Shape{}, DType::int32}}};
};

TEST(Prefetcher, ClearsNothingWhenMicroBatchesChangeTheirSize) {
  const SilentDataset data;
  // 8 samples, then 2, then 8, in the one piece of memory that there is.
  const auto next = [](SampleSpan span) {
    return SampleSpan{span.first_position + span.count, span.count == 8 ? 2 : 8};
  };
  Prefetcher prefetcher(data, SampleOrder(1, 100, false), next, {.threads = 1, .depth = 1});
  prefetcher.start({0, 8});
  std::vector<int32_t> values(8);
  for (const SampleSpan span : {SampleSpan{0, 8}, {8, 2}, {10, 8}}) {
    // By the thread: what take() reads by itself would show nothing but these.
    data.wait_for_reads(span.first_position + span.count);
    values.assign(8, -1);
    const Tensor tensor{values.data(), Shape{span.count}, DType::int32};
    prefetcher.take(span, std::span(&tensor, 1));
  }
  EXPECT_THAT(values, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
}

TEST(Prefetcher, FillsOnlyTheFieldsAskedFor) {
  const CountingDataset data(10);
  Prefetcher prefetcher(data, SampleOrder(1, 10, false), following,
                        {.threads = 1, .depth = 2, .fields = {"label"}});
  for (int64_t first = 0; first < 9; first += 3) {
    Batch batch(3);
    prefetcher.take({first, 3}, std::span(batch.tensors).subspan(1));
    EXPECT_THAT(batch.labels, ElementsAre(first, first + 1, first + 2));
    EXPECT_THAT(batch.images, Each(0.0f));
  }
}

TEST(Prefetcher, CountsTheTimeThatReadingTook) {
  const CountingDataset data(10);
  Prefetcher prefetcher(data, SampleOrder(1, 10, false), following, {.threads = 0});
  EXPECT_EQ(prefetcher.data_wait_ms(), 0);
  Batch batch(10);
  prefetcher.take({0, 10}, batch.tensors);
  EXPECT_GT(prefetcher.data_wait_ms(), 0);
}

TEST(Prefetcher, RefusesTensorsThatDoNotFit) {
  const CountingDataset data(10);
  const SampleOrder order(1, 10, false);
  Prefetcher prefetcher(data, order, following, {});
  Batch batch(3);
  const auto refusal = [&](SampleSpan span, std::vector<Tensor> tensors) {
    return message_of<ConfigError>([&] { prefetcher.take(span, tensors); });
  };
  EXPECT_THAT(refusal({0, 2}, batch.tensors), Mentions("'image': ... float32 ... [2, 2] ... float32 [3, 2]"));
  EXPECT_THAT(refusal({0, 3}, {batch.tensors[0]}), HasSubstr("expected 2 tensors"));
  auto wrong_type = batch.tensors;
  wrong_type[1].dtype = DType::float32;
  EXPECT_THAT(refusal({0, 3}, wrong_type), HasSubstr("field 'label': expected a int32"));
  EXPECT_THAT(refusal({-3, 3}, batch.tensors), HasSubstr("position -3"));
  EXPECT_THAT(message_of<ConfigError>([&] { Prefetcher(data, order, following, {.fields = {"labels"}}); }),
              Mentions("'labels' ... 'label'"));
  EXPECT_THROW(Prefetcher(data, order, following, {.fields = {"label", "label"}}), ConfigError);
  EXPECT_THROW(Prefetcher(data, order, following, {.depth = 0}), ConfigError);
}

TEST(EvaluationReader, ReadsInFileOrderAndPadsBehindTheEnd) {
  const CountingDataset data(5);
  const EvaluationReader reader(data);
  Batch batch(4);
  reader.read({0, 4}, batch.tensors);
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 2, 3));
  reader.read({4, 4}, batch.tensors);
  EXPECT_THAT(batch.labels, ElementsAre(4, -1, -1, -1));
  EXPECT_THAT(batch.images, ElementsAre(4, 4.5f, 0, 0, 0, 0, 0, 0));
  reader.read({100, 4}, batch.tensors);
  EXPECT_THAT(batch.labels, Each(-1));
}

}  // namespace
}  // namespace lockstep::data
