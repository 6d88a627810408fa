#include "data/records/record_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "data/replaced_samples.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class RecordSamples : public Dataset {
 public:
  RecordSamples(std::shared_ptr<const RecordSet> records, const RecordIndex& index, int part,
                std::string description, DamagePolicy on_damage)
      : records_(std::move(records)),
        packed_(index.fields),
        classes_(index.classes),
        class_names_(index.class_names),
        encodings_(index.encodings),
        identity_(index.parts[part].identity),
        left_out_(index.parts[part].left_out),
        source_(std::move(description)),
        on_damage_(on_damage) {
    for (const auto& packed : packed_) {
      fields_.push_back(packed.field);
      sizes_.push_back(
          static_cast<size_t>(packed.field.spec.shape.count() * size_of(packed.field.spec.dtype)));
      record_bytes_ += sizes_.back();
    }
    for (int64_t i = 0; i < records_->count(); ++i)
      if (records_->entry(i).size_bytes != record_bytes_)
        throw DataError(fmt::format("{}: expected a sample of {} bytes, found {}; pack the data again",
                                    records_->place(i), record_bytes_, records_->entry(i).size_bytes));
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return records_->count(); }
  int64_t classes() const override { return classes_; }
  int64_t vocabulary(std::string_view field) const override { return packed(field).vocabulary; }
  Encodings encodings() const override { return encodings_; }
  LargestValue largest(std::string_view field, int64_t ignored) const override {
    const int64_t value = packed(field).largest;
    return {.value = value == ignored ? value - 1 : value, .place = ""};
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override { return fmt::format("{} samples of {}", size(), source_); }
  std::vector<std::string> class_names() const override { return class_names_; }
  std::string sample_name(int64_t sample) const override { return records_->place(sample); }
  Damage damage() const override { return {.left_out = left_out_, .replaced = replaced_.ascending()}; }

  std::optional<SampleDamage> find_damage(int64_t sample) const override {
    const RecordState state = copy(sample, {});
    if (state == RecordState::whole) return {};
    const RecordDamage damage = records_->damage(sample, state);
    return SampleDamage{records_->path(sample), sample, damage.byte,
                        fmt::format("{}: {}", records_->place(sample), damage.what)};
  }

  void expect(const SampleKey& key) const override { records_->expect(key.sample); }

  /// With SKIP the next sample whose record is whole takes the place of one that is not.
  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    for (int64_t tries = 0;; ++tries) {
      const int64_t record = (key.sample + tries) % size();
      const RecordState state = copy(record, destinations);
      if (state == RecordState::whole) [[likely]]
        return;
      const RecordDamage damage = records_->damage(record, state);
      const std::string message =
          fmt::format("{} (sample {}, byte {}): {}; copy the shard again, or set data.on_damage: SKIP",
                      records_->place(record), record, damage.byte, damage.what);
      if (on_damage_ == DamagePolicy::fail || tries == std::min(kMostReplacedInARow, size()) - 1)
        throw DataError(message);
      replaced_.note(record, message);
    }
  }

 private:
  const PackedField& packed(std::string_view field) const {
    const auto found = std::ranges::find_if(packed_, [&](const auto& p) { return p.field.name == field; });
    return found == packed_.end() ? packed_.front() : *found;
  }

  /// `destinations`: may be empty.
  RecordState copy(int64_t record, std::span<std::byte* const> destinations) const {
    bool fits = true;
    const RecordState state = records_->read(record, [&](std::span<const uint8_t> bytes) noexcept {
      fits = bytes.size() == record_bytes_;
      const uint8_t* from = bytes.data();
      for (size_t i = 0; fits && i < destinations.size(); from += sizes_[i], ++i)
        if (destinations[i] != nullptr) std::memcpy(destinations[i], from, sizes_[i]);
    });
    return fits ? state : RecordState::cut_short;
  }

  std::shared_ptr<const RecordSet> records_;
  std::vector<PackedField> packed_;
  std::vector<Field> fields_;
  std::vector<size_t> sizes_;  // bytes of each field
  size_t record_bytes_ = 0;
  int64_t classes_;
  std::vector<std::string> class_names_;
  Encodings encodings_;
  uint64_t identity_;
  int64_t left_out_;
  std::string source_;
  DamagePolicy on_damage_;
  mutable ReplacedSamples replaced_;
};

}  // namespace

std::shared_ptr<const Dataset> make_record_samples(std::shared_ptr<const RecordSet> records,
                                                   const RecordIndex& index, int part,
                                                   std::string description, DamagePolicy on_damage) {
  return std::make_shared<RecordSamples>(std::move(records), index, part, std::move(description), on_damage);
}

}  // namespace lockstep::data
