#include "data/transforms/transformed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>

#include "data/stage_clock.h"
#include "data/transforms/chain.h"
#include "data/transforms/memory_pixels.h"
#include "data/transforms/wrapped_dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

ImageShape image_shape(const Shape& shape) { return {shape[0], shape[1], shape[2]}; }

/// Room of the calling thread. Data sets around each other have one each, since the outer one's is filled
/// while the inner one reads.
class ThreadRoom {
 public:
  ThreadRoom() : room_(enter()) {}
  ~ThreadRoom() { --depth(); }
  ThreadRoom(const ThreadRoom&) = delete;
  std::vector<float>& originals() { return room_.originals; }
  std::vector<float>& cut() { return room_.cut; }

 private:
  struct Room {
    std::vector<float> originals, cut;
  };
  static size_t& depth() {
    thread_local size_t depth = 0;
    return depth;
  }
  static Room& enter() {
    thread_local std::deque<Room> rooms;  // whose elements stay where they are
    if (depth() == rooms.size()) rooms.emplace_back();
    return rooms[depth()++];
  }

  Room& room_;
};

class TransformedDataset : public WrappedDataset {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> base, std::span<const TransformOptions> transforms,
                     uint32_t first_place)
      : WrappedDataset(std::move(base)), chain_(transforms, first_place) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (!is_image(fields_[i])) continue;
      const ImageShape from = image_shape(fields_[i].spec.shape), to = chain_.output(from);
      fields_[i].spec.shape = Shape{to.height, to.width, to.channels};
      images_.push_back({i, from});
    }
    require(
        !images_.empty(),
        fmt::format("data.transforms: they are for images, fields of shape [height, width, channels], but "
                    "the data ({}) have none; remove them",
                    base_->description()));
  }

  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t sample) const override {
    if (const auto size = base_->stored_size(sample)) return size;
    return std::pair(images_.front().shape.height, images_.front().shape.width);
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    TransformScratch& scratch = scratch_of_thread();
    std::array<std::byte*, kMostFields> inner{};
    std::copy(destinations.begin(), destinations.end(), inner.begin());
    int64_t most = 0;
    for (const auto& image : images_) most += image.shape.count();
    ThreadRoom room;
    room.originals().resize(static_cast<size_t>(most));
    float* next = room.originals().data();
    for (const auto& image : images_) {
      if (inner[image.field] != nullptr) inner[image.field] = reinterpret_cast<std::byte*>(next);
      next += image.shape.count();
    }
    base_->read(key, std::span<std::byte* const>(inner.data(), destinations.size()));
    const StageTimer timer(DataStage::transform);
    for (const auto& image : images_) {
      if (destinations[image.field] == nullptr) continue;
      MemoryPixels source(image.shape, reinterpret_cast<const float*>(inner[image.field]), room.cut());
      chain_.apply(key, source, reinterpret_cast<float*>(destinations[image.field]), scratch);
    }
  }

  /// These are transforms behind the mixing of samples.
  std::optional<PackedImages> packed() const override {
    auto packed = base_->packed();
    if (!packed) return {};
    const ImageShape shape = images_.front().shape;
    chain_.require_tail();
    const ChainTail tail = chain_.tail(shape);
    packed->layout.after = tail.steps;
    packed->layout.sums_after = tail.sums;
    return packed;
  }
  void read_packed(const SampleKey& key, std::span<std::byte* const> destinations,
                   const pixels::PackedSample& packed) const override {
    base_->read_packed(key, destinations, packed);
    chain_.write_tail(key, images_.front().shape, packed.after);
  }

 private:
  struct ImageField {
    size_t field;
    ImageShape shape;  // before transforms
  };
  TransformChain chain_;
  std::vector<ImageField> images_;
};

}  // namespace

std::shared_ptr<const Dataset> transform_images(std::shared_ptr<const Dataset> base,
                                                std::span<const TransformOptions> transforms,
                                                uint32_t first_place) {
  return std::make_shared<TransformedDataset>(std::move(base), transforms, first_place);
}

}  // namespace lockstep::data
