#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "lockstep/tensor.h"
#include "model/graph.h"
#include "program/program.h"
#include "program/segment_code.h"
#include "tensor/batch_places.h"

namespace lockstep::run {

/// Host memory through which a batch passes to a device with its own memory. There are two: one is filled
/// while the other is copied. If the source exchanges batches, it is what was read ahead.
struct Staging {
  device::Buffer memory;
  tensor::BatchPlaces places;
  std::unique_ptr<device::Event> copied;

  static tensor::BatchPlaces places_of(const std::vector<Tensor>& fields) {
    std::vector<int64_t> sizes;
    for (const auto& field : fields) sizes.push_back(field.size_bytes());
    return tensor::batch_places(sizes);
  }
  static int64_t size_bytes_for(const std::vector<Tensor>& fields) { return places_of(fields).size_bytes; }

  void make(device::Device& device, const std::vector<Tensor>& like) {
    places = places_of(like);
    memory = device.allocate_host(places.size_bytes);
    copied = device.create_event();
  }
  std::byte* at(size_t field) const { return memory.data() + places.offsets[field]; }
};

/// Model inputs of a micro-batch, without memory; as the host has them, if one comes packed.
std::vector<Tensor> batch_fields(const model::Graph& graph, int64_t micro_batch,
                                 const std::optional<program::PackedInput>& packed = {});

/// The staging, of two, that a load uses.
size_t staging_of(const program::Instruction& load);

/// Whether a load needs a staging: on a device with its own memory; on others for fields that this rank does
/// not need but reads anyway.
bool stages(const program::Instruction& load, size_t fields, device::DeviceKind device);

}  // namespace lockstep::run
