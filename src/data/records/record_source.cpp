#include "data/records/record_source.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "data/dataset.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// A kind of data, and why it is not packed.
struct PackedKind {
  DataKind kind;
  const char* name;
  const char* why_not;  // null: it is packed
};
constexpr PackedKind kPackedKinds[] = {
    {DataKind::images, "images", nullptr},
    {DataKind::table, "table", nullptr},
    {DataKind::lines, "lines", nullptr},
    {DataKind::idx, "idx", "IDX files are few and hold pixels already"},
    {DataKind::cifar, "cifar", "CIFAR's files are few and hold pixels already"},
    {DataKind::tokens, "tokens", "files of tokens are read at any place already"},
    {DataKind::text, "text", "make tokens of it, which are read at any place: lockstep data tokens"},
    {DataKind::synthetic, "synthetic", "its samples are made from a seed whenever they are needed"},
    {DataKind::own, "own", "only the program that makes the samples can read them"},
    {DataKind::records, "records", "it is packed already"},
};

class SampleSource : public RecordSource {
 public:
  SampleSource(DatasetPair data, const char* name) : parts_{data.train, data.eval}, name_(name) {
    for (const auto& field : any().fields())
      record_bytes_ += field.spec.shape.count() * size_of(field.spec.dtype);
  }

  int64_t count(int part) const override { return parts_[part] ? parts_[part]->size() : 0; }
  int64_t expected_bytes(int /*part*/, int64_t /*sample*/) const override { return record_bytes_; }

  bool make(int part, int64_t sample, MadeRecord& record) const override {
    const Dataset& data = *parts_[part];
    record.entry = {};
    record.name = data.sample_name(sample);
    record.room.resize(static_cast<size_t>(record_bytes_));
    auto* next = reinterpret_cast<std::byte*>(record.room.data());
    std::vector<std::byte*> destinations;
    for (const auto& field : data.fields()) {
      destinations.push_back(next);
      next += field.spec.shape.count() * size_of(field.spec.dtype);
    }
    data.read(sample, destinations);
    record.bytes = record.room;
    record.entry.beginning = hash64(record.room.data(), record.room.size());
    return true;
  }

  uint64_t identity() const override {
    uint64_t hash = hash64(std::string_view(name_));
    for (const auto& part : parts_) hash = hash_combine(hash, part ? part->identity() : 0);
    for (const auto& [file, text] : any().encodings()) hash = hash_combine(hash, hash64(text, hash64(file)));
    return hash;
  }

  RecordIndex index() const override {
    const Dataset& data = any();
    RecordIndex index{.content = RecordContent::samples,
                      .source = fmt::format("samples of {}", name_),
                      .pack = 0,
                      .classes = data.classes(),
                      .class_names = data.class_names(),
                      .channels = 3,
                      .fields = {},
                      .encodings = data.encodings(),
                      .parts = {}};
    for (const auto& field : data.fields())
      index.fields.push_back(
          {field, data.vocabulary(field.name),
           field.spec.dtype == DType::int32 ? data.largest(field.name, INT64_MIN).value : -1});
    for (int part = 0; part < 2; ++part)
      if (parts_[part]) {
        index.parts[part].identity = parts_[part]->identity();
        index.parts[part].left_out = parts_[part]->damage().left_out;
      }
    return index;
  }

 private:
  const Dataset& any() const { return parts_[0] ? *parts_[0] : *parts_[1]; }

  std::shared_ptr<const Dataset> parts_[2];
  const char* name_;
  int64_t record_bytes_ = 0;
};

const PackedKind& row_of(DataKind kind) {
  for (const auto& row : kPackedKinds)
    if (row.kind == kind) return row;
  throw InternalError("a kind of data is not in the table of what is packed");
}

}  // namespace

std::unique_ptr<const RecordSource> open_record_source(const DataOptions& options, const PackImages& images) {
  const PackedKind& row = row_of(options.kind);
  require(row.why_not == nullptr, fmt::format("data.{} is not packed: {}; images, table and lines are",
                                              row.name, row.why_not ? row.why_not : ""));
  if (options.kind == DataKind::images) return open_image_source(options, images);
  require(!images.as_pixels && images.longest_side == 0,
          fmt::format("data.{}: --pixels and --longest-side are for images; leave them out", row.name));
  DataOptions plain = options;  // transforms are applied when records are read
  plain.transforms.clear();
  plain.eval_transforms.clear();
  return std::make_unique<SampleSource>(open_datasets(plain), row.name);
}

}  // namespace lockstep::data
