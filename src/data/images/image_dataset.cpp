#include "data/images/image_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/hash.h"
#include "data/class_names.h"
#include "data/file_list.h"
#include "data/images/inspection.h"
#include "data/replaced_samples.h"
#include "data/stage_clock.h"
#include "data/transforms/chain.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class ImagesDataset : public Dataset {
 public:
  ImagesDataset(std::unique_ptr<const ImageStore> store, ImageDatasetOptions options)
      : store_(std::move(store)), options_(std::move(options)), chain_(options_.transforms) {
    if (store_->count() == 0)
      throw DataError(
          fmt::format("{}: expected at least one JPEG or PNG image, found none", one_line(options_.source)));
    const ImageShape shape = common_shape();
    fields_ = {{"image", {Shape{shape.height, shape.width, shape.channels}, DType::float32}},
               {std::string(kLabelField), {Shape{}, DType::int32}}};
    identity_ = identity_of(*store_);
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return store_->count(); }
  int64_t classes() const override { return options_.classes.count; }
  LargestValue largest(std::string_view /*field*/, int64_t ignored) const override {
    const auto rank = [&](int64_t image) {
      const int32_t label = store_->facts(image).label;
      return label == ignored ? -1 : int64_t{label};
    };
    int64_t found = 0;
    for (int64_t image = 1; image < size(); ++image)
      if (rank(image) > rank(found)) found = image;
    return {.value = rank(found),
            .place = fmt::format("class {} of {}", store_->facts(found).label, store_->place(found))};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} images in {} classes of {}", size(), options_.classes.count,
                       one_line(options_.source));
  }
  std::vector<std::string> class_names() const override { return options_.classes.names; }
  Encodings encodings() const override {
    return options_.classes.names.empty() ? Encodings{} : class_encoding(options_.classes.names);
  }
  std::string sample_name(int64_t sample) const override { return store_->place(sample); }
  Damage damage() const override {
    return {.left_out = options_.left_out, .replaced = replaced_.ascending()};
  }

  std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t sample) const override {
    const ImageHeader& header = store_->facts(sample).header;
    return std::pair(header.shown_height(), header.shown_width());
  }
  uint64_t content_hash(int64_t sample) const override {
    std::vector<uint8_t> room;
    try {
      const auto bytes = store_->bytes(sample, room);
      return hash64(bytes.data(), bytes.size());
    } catch (const ImageDamage& damage) {
      throw DataError(damage_message(store_->place(sample), sample, damage));
    }
  }

  std::optional<SampleDamage> find_damage(int64_t sample) const override {
    try {
      thread_local std::vector<uint8_t> room;
      const auto bytes = store_->bytes(sample, room);
      FilePixels source(store_->facts(sample).header, bytes, options_.pixels);
      const ImageShape shape = source.shape();
      source.read({0, 0, shape.height, shape.width}, 1);
      return {};
    } catch (const ImageDamage& damage) {
      return SampleDamage{store_->place(sample), sample, damage.byte, damage.what};
    }
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    thread_local std::vector<std::byte> unused;
    auto* image = reinterpret_cast<float*>(destinations[0]);
    // Who reads the label alone has to find the same damage.
    if (image == nullptr && options_.on_damage == DamagePolicy::skip) {
      unused.resize(static_cast<size_t>(fields_[0].spec.shape.count()) * sizeof(float));
      image = reinterpret_cast<float*>(unused.data());
    }
    int64_t sample = key.sample;
    if (image != nullptr)
      sample = read_image(
          key, [&](PixelSource& source) { chain_.apply(key, source, image, scratch_of_thread()); });
    write_label(sample, destinations);
  }

  std::optional<PackedImages> packed() const override {
    const Shape& shape = fields_[0].spec.shape;
    const ImageShape image{shape[0], shape[1], shape[2]};
    const ChainTail tail = chain_.tail(image);
    return PackedImages{.field = 0,
                        .layout = {.image = extent_of(image), .steps = tail.steps, .sums = tail.sums}};
  }
  void read_packed(const SampleKey& key, std::span<std::byte* const> destinations,
                   const pixels::PackedSample& packed) const override {
    const int64_t sample = read_image(key, [&](PixelSource& source) {
      chain_.pack(key, source, packed.image, packed.steps, scratch_of_thread());
    });
    write_label(sample, destinations);
  }

 private:
  void write_label(int64_t sample, std::span<std::byte* const> destinations) const {
    if (destinations[1] != nullptr)
      *reinterpret_cast<int32_t*>(destinations[1]) = store_->facts(sample).label;
  }

  /// Gives `take` the image of the key, or with SKIP the next one in the data set's order that is not
  /// damaged. Returns which it was.
  template <class Take>
  int64_t read_image(const SampleKey& key, const Take& take) const {
    for (int64_t tries = 0;; ++tries) {
      const int64_t sample = (key.sample + tries) % size();
      try {
        thread_local std::vector<uint8_t> room;
        const auto bytes = store_->bytes(sample, room);
        FilePixels source(store_->facts(sample).header, bytes, options_.pixels);
        const StageTimer timer(DataStage::transform);
        take(source);
        return sample;
      } catch (const ImageDamage& damage) {
        const std::string message = damage_message(store_->place(sample), sample, damage);
        if (options_.on_damage == DamagePolicy::fail || tries == std::min(kMostReplacedInARow, size()) - 1)
          throw DataError(message);
        replaced_.note(sample, message);
      }
    }
  }

  /// That of what the model gets, which must not depend on the file.
  ImageShape common_shape() const {
    std::set<std::pair<int64_t, int64_t>> seen;
    ImageShape common;
    int64_t first = -1;
    for (int64_t image = 0; image < size(); ++image) {
      const ImageHeader& header = store_->facts(image).header;
      const ImageShape from{header.shown_height(), header.shown_width(), options_.pixels.channels};
      if (!seen.insert({from.height, from.width}).second) continue;
      ImageShape to;
      try {
        to = chain_.output(from);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("data.transforms: {} ({})", error.what(), store_->place(image)));
      }
      if (first >= 0 && to != common)
        throw ConfigError(
            fmt::format("data.transforms: {} becomes {}, but {} becomes {}; add resize or "
                        "random_resized_crop, so that all "
                        "images have the model's size",
                        store_->place(first), common.to_string(), store_->place(image), to.to_string()));
      common = to;
      first = image;
    }
    return common;
  }

  std::unique_ptr<const ImageStore> store_;
  ImageDatasetOptions options_;
  TransformChain chain_;
  std::vector<Field> fields_;
  uint64_t identity_ = 0;
  mutable ReplacedSamples replaced_;
};

}  // namespace

std::shared_ptr<const Dataset> make_image_dataset(std::unique_ptr<const ImageStore> store,
                                                  ImageDatasetOptions options) {
  return std::make_shared<ImagesDataset>(std::move(store), std::move(options));
}

uint64_t identity_of(const ImageStore& store) {
  const int64_t count = store.count();
  uint64_t identity = hash64(&count, sizeof count);
  for (int64_t image = 0; image < count; ++image) {
    const ImageFacts& known = store.facts(image);
    const uint64_t facts[] = {static_cast<uint64_t>(known.label), static_cast<uint64_t>(known.size_bytes),
                              known.beginning};
    identity = hash_combine(identity, hash64(facts, sizeof facts));
  }
  return identity;
}

void require_same_shape(const Dataset& train, const Dataset& eval) {
  const Shape &a = train.fields()[0].spec.shape, &b = eval.fields()[0].spec.shape;
  require(a == b,
          fmt::format("data.eval_transforms: evaluation images become {}, but training images {}; make them "
                      "equal, such as by resize and center_crop",
                      b.to_string(), a.to_string()));
}

}  // namespace lockstep::data
