#include "data/images/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <thread>

#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/file_list.h"
#include "data/found_damage.h"
#include "data/images/image_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMostImageFileBytes = INT32_MAX;

struct LookedAt {
  InspectedImage image;
  std::optional<ImageDamage> damage;
  std::exception_ptr error;
};

void look_at(const ListedImage& listed, int32_t label, int64_t most_pixels, LookedAt& result) try {
  auto& image = result.image;
  image.path = listed.path;
  image.name = listed.name;
  image.label = label;
  std::error_code unknown;
  if (!std::filesystem::exists(listed.path, unknown) && !unknown) {
    result.damage = ImageDamage{0, "there is no such file"};
    return;
  }
  const ImageFile file(listed.path);
  image.size_bytes = file.size_bytes();
  image.changed_ns = file.changed_ns();
  if (image.size_bytes > kMostImageFileBytes)
    throw ImageDamage{kMostImageFileBytes, fmt::format("expected at most {} bytes, found {}",
                                                       kMostImageFileBytes, image.size_bytes)};
  image.header = read_image_header(file);
  const int64_t height = image.header.height, width = image.header.width;
  if (height > most_pixels / width)
    throw ImageDamage{0, fmt::format("expected at most {} pixels (data.images.most_pixels), found {}x{}",
                                     most_pixels, height, width)};
  uint8_t beginning[4096];
  image.beginning = hash64(beginning, static_cast<size_t>(file.read(0, beginning)));
} catch (const ImageDamage& damage) {
  result.damage = damage;
} catch (...) {
  result.error = std::current_exception();
}

}  // namespace

std::string damage_message(const std::string& place, int64_t sample, const ImageDamage& damage) {
  return fmt::format(
      "{} (sample {}, byte {}): {}; get the file again, remove it, or set data.on_damage: SKIP", place,
      sample, damage.byte, damage.what);
}

Inspection inspect_images(const ImageList& list, const std::vector<int32_t>& labels,
                          const DataOptions& options) {
  const size_t count = list.images.size();
  std::vector<LookedAt> looked(count);
  std::atomic<size_t> next = 0;
  constexpr size_t kAtOnce = 64;
  const auto work = [&] {
    for (size_t begin = next.fetch_add(kAtOnce); begin < count; begin = next.fetch_add(kAtOnce))
      for (size_t i = begin; i < std::min(count, begin + kAtOnce); ++i)
        look_at(list.images[i], labels[i], options.images.most_pixels, looked[i]);
  };
  constexpr size_t kMostThreads = 8;
  const size_t helpful = std::min({kMostThreads, count / kAtOnce + 1,
                                   static_cast<size_t>(std::max(1u, std::thread::hardware_concurrency()))});
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < helpful; ++i) threads.emplace_back(work);
    work();
  }
  Inspection inspection;
  constexpr int64_t kMostWarnings = 10;
  for (size_t i = 0; i < count; ++i) {
    if (looked[i].error) std::rethrow_exception(looked[i].error);
    if (!looked[i].damage) {
      inspection.images.push_back(std::move(looked[i].image));
      continue;
    }
    const auto& [byte, what] = *looked[i].damage;
    const std::string& path = list.images[i].path;
    const std::string message = damage_message(one_line(path), static_cast<int64_t>(i), *looked[i].damage);
    if (options.on_damage == DamagePolicy::fail) throw DataError(message);
    if (options.found)
      options.found->add({.file = path, .sample = static_cast<int64_t>(i), .byte = byte, .what = what});
    if (++inspection.left_out <= kMostWarnings) log_warning("left out: " + message);
  }
  if (inspection.left_out > kMostWarnings)
    log_warning(fmt::format("left out: {} more images of {}", inspection.left_out - kMostWarnings,
                            one_line(list.source)));
  return inspection;
}

bool read_image_file(const InspectedImage& image, std::vector<uint8_t>& bytes) {
  const ImageFile file(image.path);
  if (file.size_bytes() != image.size_bytes)
    throw ImageDamage{
        std::min(file.size_bytes(), image.size_bytes),
        fmt::format("expected the {} bytes that it had when the data were opened, found {}: it has "
                    "changed",
                    image.size_bytes, file.size_bytes())};
  bytes.resize(static_cast<size_t>(image.size_bytes));
  if (const int64_t got = file.read(0, bytes); got < image.size_bytes)
    throw ImageDamage{
        got, fmt::format("expected {} bytes, found the end of the file: it has changed", image.size_bytes)};
  return file.changed_ns() == image.changed_ns && file.is_unchanged();
}

}  // namespace lockstep::data
