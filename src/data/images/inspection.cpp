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
#include "data/images/header_index.h"
#include "data/images/image_file.h"
#include "data/stop.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMostImageFileBytes = INT32_MAX;

struct LookedAt {
  InspectedImage image;
  KnownHeader header;
  std::optional<ImageDamage> damage;
  std::exception_ptr error;
};

KnownHeader read_header(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) && !unknown) throw ImageDamage{0, "there is no such file"};
  const ImageFile file(path);
  if (file.size_bytes() > kMostImageFileBytes)
    throw ImageDamage{kMostImageFileBytes, fmt::format("expected at most {} bytes, found {}",
                                                       kMostImageFileBytes, file.size_bytes())};
  KnownHeader found{.stamp = file.stamp(), .beginning = 0, .header = read_image_header(file)};
  uint8_t beginning[4096];
  found.beginning = hash64(beginning, static_cast<size_t>(file.read(0, beginning)));
  return found;
}

/// `known`: null if the file is to be read.
void look_at(const ListedImage& listed, int32_t label, int64_t most_pixels, const KnownHeader* known,
             LookedAt& result) try {
  const KnownHeader& found = result.header = known != nullptr ? *known : read_header(listed.path);
  auto& image = result.image;
  image.path = listed.path;
  image.name = listed.name;
  image.label = label;
  image.size_bytes = found.stamp.size_bytes;
  image.changed_ns = found.stamp.changed_ns;
  image.beginning = found.beginning;
  image.header = found.header;
  const int64_t height = image.header.height, width = image.header.width;
  if (height > most_pixels / width)
    throw ImageDamage{0, fmt::format("expected at most {} pixels (data.images.most_pixels), found {}x{}",
                                     most_pixels, height, width)};
} catch (const ImageDamage& damage) {
  result.damage = damage;
} catch (...) {
  result.error = std::current_exception();
}

std::vector<LookedAt> look_at_all(const ImageList& list, const std::vector<int32_t>& labels,
                                  const DataOptions& options, const std::optional<HeaderIndex>& index) {
  const size_t count = list.images.size();
  std::vector<LookedAt> looked(count);
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  constexpr size_t kAtOnce = 64;
  const auto work = [&] {
    for (size_t begin = next.fetch_add(kAtOnce); begin < count; begin = next.fetch_add(kAtOnce)) {
      if (index) index->get_on();
      for (size_t i = begin; i < std::min(count, begin + kAtOnce); ++i) {
        const auto* known = index ? index->find(i, list.images[i].path) : nullptr;
        // Where nothing is to be read the request is for whoever trains, and saves.
        if (known == nullptr && options.stop_requested != nullptr && options.stop_requested()) stopped = true;
        if (stopped) return;
        look_at(list.images[i], labels[i], options.images.most_pixels, known, looked[i]);
      }
    }
  };
  constexpr size_t kMostThreads = 8;
  const size_t helpful = std::min({kMostThreads, count / kAtOnce + 1,
                                   static_cast<size_t>(std::max(1u, std::thread::hardware_concurrency()))});
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < helpful; ++i) threads.emplace_back(work);
    work();
  }
  if (stopped) throw StopRequested();
  return looked;
}

std::vector<KnownHeader> headers_of(const std::vector<LookedAt>& looked) {
  std::vector<KnownHeader> headers(looked.size());
  for (size_t i = 0; i < looked.size(); ++i)
    if (!looked[i].damage) headers[i] = looked[i].header;
  return headers;
}

/// Those that are not damaged. Of others, throws or warns of the first few.
Inspection take_whole(const ImageList& list, std::vector<LookedAt>& looked, const DataOptions& options) {
  Inspection inspection;
  constexpr int64_t kMostWarnings = 10;
  for (size_t i = 0; i < looked.size(); ++i) {
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

}  // namespace

std::string damage_message(const std::string& place, int64_t sample, const ImageDamage& damage) {
  return fmt::format(
      "{} (sample {}, byte {}): {}; get the file again, remove it, or set data.on_damage: SKIP", place,
      sample, damage.byte, damage.what);
}

Inspection inspect_images(const ImageList& list, const std::vector<int32_t>& labels,
                          const DataOptions& options, std::chrono::nanoseconds settling) {
  // Who looks for damage reads all headers.
  std::optional<HeaderIndex> index;
  if (!options.cache_directory.empty() && !options.found)
    index.emplace(options.cache_directory, list, std::chrono::seconds(60), options.stop_requested);
  std::vector<LookedAt> looked = look_at_all(list, labels, options, index);
  for (const auto& each : looked)
    if (each.error) std::rethrow_exception(each.error);
  if (index) index->keep(headers_of(looked), settling);
  return take_whole(list, looked, options);
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
