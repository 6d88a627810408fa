#include "data/batch_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/ensure.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "tensor/convert.h"

namespace lockstep::data {
BatchReader::BatchReader(const Dataset& dataset, SampleOrder order, const std::vector<std::string>& fields,
                         DType float_type, bool packed)
    : dataset_(&dataset), order_(order) {
  const auto images = packed ? dataset.packed() : std::nullopt;
  ensure(!packed || images, "samples that cannot be packed are to be read so");
  const auto& known = dataset.fields();
  ensure(known.size() <= kMostFields, fmt::format("a data set has more than {} fields", kMostFields));
  std::vector<std::string> names;
  for (const auto& field : known) names.push_back(field.name);
  for (const auto& name : fields.empty() ? names : fields) {
    const auto found = std::find(names.begin(), names.end(), name);
    require(found != names.end(), fmt::format("expected one of the data set's fields {}, found '{}'{}",
                                              join(names, ", "), name, did_you_mean(name, names)));
    const auto index = static_cast<size_t>(found - names.begin());
    require(
        std::none_of(selected_.begin(), selected_.end(), [&](const Selected& s) { return s.index == index; }),
        fmt::format("expected each field once, found '{}' twice", name));
    const auto& spec = known[index].spec;
    const bool is_label = name == kLabelField && spec.dtype == DType::int32;
    const bool is_packed = images && index == images->field;
    if (is_packed) {
      packed_ = images;
      packed_shape_ = Shape{images->layout.sample_bytes()};
    }
    const bool converted = spec.dtype == DType::float32 && float_type != DType::float32 && !is_packed;
    const DType dtype = is_packed ? DType::uint8 : converted ? float_type : spec.dtype;
    const int64_t count = is_packed ? images->layout.sample_bytes() : spec.shape.count();
    selected_.push_back({.index = index,
                         .count = count,
                         .sample_bytes = count * size_of(dtype),
                         .dtype = dtype,
                         .is_label = is_label,
                         .is_packed = is_packed,
                         .scratch_offset = converted ? scratch_bytes_ : -1});
    if (converted) scratch_bytes_ += count * size_of(DType::float32);
  }
}

void BatchReader::check(SampleSpan span, std::span<const Tensor> tensors) const {
  // This runs for every batch: messages, which take memory, are built only where they are needed.
  if (span.first_position < 0 || span.count < 0)
    throw ConfigError(
        fmt::format("expected a span of samples from position 0 on, found position {} and count {}",
                    span.first_position, span.count));
  if (tensors.size() != selected_.size())
    throw ConfigError(
        fmt::format("expected {} tensors, one per field, found {}", selected_.size(), tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& field = dataset_->fields()[selected_[i].index];
    const auto& dims = tensors[i].shape.dims();
    const Shape& shape = selected_[i].is_packed ? packed_shape_ : field.spec.shape;
    const auto& expected = shape.dims();
    const bool fits = tensors[i].dtype == selected_[i].dtype && dims.size() == expected.size() + 1 &&
                      dims[0] == span.count && std::equal(expected.begin(), expected.end(), dims.begin() + 1);
    if (!fits)
      throw ConfigError(fmt::format("field '{}': expected a {} tensor of shape {}, found {} {}", field.name,
                                    name_of(selected_[i].dtype), shape.batched(span.count).to_string(),
                                    name_of(tensors[i].dtype), tensors[i].shape.to_string()));
  }
}

void BatchReader::read(SampleSpan span, std::span<const Tensor> tensors, std::span<std::byte> scratch) const {
  std::array<std::byte*, kMostFields> batches{};
  for (size_t i = 0; i < tensors.size(); ++i) batches[i] = tensors[i].as<std::byte>();
  read(span, std::span<std::byte* const>(batches.data(), tensors.size()), scratch, [] { return false; });
}

void BatchReader::read_one(const SampleKey& key, int64_t row, std::span<std::byte* const> batches,
                           std::span<std::byte> scratch) const {
  if (key.sample == SampleOrder::kPadding) {
    for (size_t i = 0; i < selected_.size(); ++i)  // all bits set is -1 in int32, none is 0 in every type
      std::memset(batches[i] + row * selected_[i].sample_bytes, selected_[i].is_label ? 0xff : 0,
                  static_cast<size_t>(selected_[i].sample_bytes));
    return;
  }
  std::array<std::byte*, kMostFields> destinations{};
  for (size_t i = 0; i < selected_.size(); ++i)
    destinations[selected_[i].index] = selected_[i].scratch_offset < 0
                                           ? batches[i] + row * selected_[i].sample_bytes
                                           : scratch.data() + selected_[i].scratch_offset;
  const std::span<std::byte* const> all(destinations.data(), dataset_->fields().size());
  if (packed_)
    dataset_->read_packed(key, all, packed_->layout.parts(destinations[packed_->field]));
  else
    dataset_->read(key, all);
  for (size_t i = 0; i < selected_.size(); ++i)
    if (const auto& field = selected_[i]; field.scratch_offset >= 0)
      tensor::convert(batches[i] + row * field.sample_bytes, field.dtype,
                      scratch.data() + field.scratch_offset, DType::float32, field.count);
}

}  // namespace lockstep::data
