#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "data/class_names.h"
#include "data/file_list.h"
#include "data/images/file_pixels.h"
#include "data/images/image_writer.h"
#include "data/images/images.h"
#include "data/records/record_source.h"
#include "data/transforms/chain.h"
#include "data/transforms/color.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kBeginning = 4096;  // as much as an image's identity is of

class ImageSource : public RecordSource {
 public:
  ImageSource(const DataOptions& options, const PackImages& images)
      : pack_(images),
        on_damage_(options.on_damage),
        pixels_{.channels = options.images.channels,
                .background = static_cast<uint8_t>(options.images.background),
                .scaled_decoding = options.images.scaled_decoding},
        parts_(inspect_image_data(options)) {}

  int64_t count(int part) const override {
    const auto* found = part_of(part);
    return found == nullptr ? 0 : static_cast<int64_t>(found->inspection.images.size());
  }

  int64_t expected_bytes(int part, int64_t sample) const override {
    const InspectedImage& image = image_of(part, sample);
    if (!pack_.as_pixels) return image.size_bytes;
    const ImageShape shape = packed_shape(image.header);
    return shape.count();
  }

  bool make(int part, int64_t sample, MadeRecord& record) const override {
    const InspectedImage& image = image_of(part, sample);
    record.name = image.name;
    record.entry = {};
    record.entry.label = image.label;
    try {
      pack(image, record);
      return true;
    } catch (const ImageDamage& damage) {
      const std::string message = damage_message(one_line(image.path), sample, damage);
      if (on_damage_ == DamagePolicy::fail) throw DataError(message);
      log_warning("left out: " + message);
      return false;
    }
  }

  uint64_t identity() const override {
    const int64_t how[] = {pack_.as_pixels,  pack_.longest_side, pack_.quality,
                           pixels_.channels, pixels_.background, pixels_.scaled_decoding};
    uint64_t hash = decodes() ? hash64(how, sizeof how) : 0;
    for (const auto& name : parts_.classes.names) hash = hash_combine(hash, hash64(name));
    for (int part = 0; part < 2; ++part)
      for (int64_t i = 0; i < count(part); ++i) {
        const InspectedImage& image = image_of(part, i);
        const uint64_t facts[] = {static_cast<uint64_t>(part), static_cast<uint64_t>(image.label),
                                  static_cast<uint64_t>(image.size_bytes), image.beginning};
        hash = hash_combine(hash, hash64(facts, sizeof facts, hash64(image.name)));
      }
    return hash;
  }

  RecordIndex index() const override {
    RecordIndex index{.content = pack_.as_pixels ? RecordContent::pixels : RecordContent::files,
                      .source = "images",
                      .pack = 0,
                      .classes = parts_.classes.count,
                      .class_names = parts_.classes.names,
                      .channels = pack_.as_pixels ? pixels_.channels : 3,
                      .fields = {},
                      .encodings = {},
                      .parts = {}};
    if (pack_.longest_side > 0)
      index.source += fmt::format(", the longest side at most {}", pack_.longest_side);
    if (pack_.as_pixels) index.source += ", decoded";
    for (int part = 0; part < 2; ++part)
      if (const auto* found = part_of(part)) index.parts[part].left_out = found->inspection.left_out;
    return index;
  }

 private:
  bool decodes() const { return pack_.as_pixels || pack_.longest_side > 0; }
  const ImagePart* part_of(int part) const {
    const auto& found = part == 0 ? parts_.train : parts_.eval;
    return found ? &*found : nullptr;
  }
  const InspectedImage& image_of(int part, int64_t sample) const {
    return nth(part_of(part)->inspection.images, sample);
  }

  /// Upright, and no larger than is asked for.
  ImageShape packed_shape(const ImageHeader& header) const {
    ImageShape shape{header.shown_height(), header.shown_width(), pixels_.channels};
    const int64_t longest = std::max(shape.height, shape.width);
    if (pack_.longest_side == 0 || longest <= pack_.longest_side) return shape;
    const auto smaller = [&](int64_t side) {
      return std::max<int64_t>(1, (side * pack_.longest_side + longest / 2) / longest);
    };
    return {smaller(shape.height), smaller(shape.width), shape.channels};
  }

  void pack(const InspectedImage& image, MadeRecord& record) const {
    thread_local std::vector<uint8_t> file;
    read_image_file(image, file);
    if (hash64(file.data(), std::min(file.size(), kBeginning)) != image.beginning)
      throw ImageDamage{0, "the file has changed since the data were opened"};
    ShardEntry& entry = record.entry;
    const ImageShape shape = packed_shape(image.header),
                     original{image.header.shown_height(), image.header.shown_width(), pixels_.channels};
    entry.beginning = image.beginning;
    if (!pack_.as_pixels && shape == original) {
      entry.format = static_cast<uint8_t>(image.header.format);
      entry.orientation = image.header.orientation;
      entry.height = static_cast<uint32_t>(image.header.height);
      entry.width = static_cast<uint32_t>(image.header.width);
      record.room.swap(file);
    } else {
      FilePixels source(image.header, file, pixels_);
      decode(source, shape, record.room);
      if (!pack_.as_pixels)
        record.room = jpeg_bytes(shape, record.room, {.quality = static_cast<int>(pack_.quality)});
      entry.format = static_cast<uint8_t>(pack_.as_pixels ? ImageFormat::pixels : ImageFormat::jpeg);
      entry.height = static_cast<uint32_t>(shape.height);
      entry.width = static_cast<uint32_t>(shape.width);
      entry.beginning = hash64(record.room.data(), std::min(record.room.size(), kBeginning));
    }
    record.bytes = record.room;
  }

  /// The image of `shape` as bytes: decoded alone, or resized and rounded.
  void decode(FilePixels& source, const ImageShape& shape, std::vector<uint8_t>& bytes) const {
    bytes.resize(static_cast<size_t>(shape.count()));
    if (shape == source.shape()) {
      const PixelView view = source.read({0, 0, shape.height, shape.width}, 1);
      std::copy_n(view.bytes, bytes.size(), bytes.data());
      return;
    }
    thread_local std::vector<float> values;
    values.resize(bytes.size());
    const TransformOptions resize = ResizeOptions{.height = shape.height, .width = shape.width};
    TransformChain(std::span(&resize, 1)).apply(SampleKey(0), source, values.data(), scratch_of_thread());
    to_bytes(shape.count(), values.data(), bytes.data());
  }

  PackImages pack_;
  DamagePolicy on_damage_;
  PixelOptions pixels_;
  ImageParts parts_;
};

}  // namespace

std::unique_ptr<const RecordSource> open_image_source(const DataOptions& options, const PackImages& images) {
  return std::make_unique<ImageSource>(options, images);
}

}  // namespace lockstep::data
