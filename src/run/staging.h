#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "lockstep/tensor.h"
#include "model/graph.h"
#include "program/program.h"

namespace lockstep::run {

/// Host memory through which a batch passes to a device with its own memory. There are two: one is filled
/// while the other is copied.
struct Staging {
  device::Buffer memory;
  std::vector<Tensor> fields;
  std::unique_ptr<device::Event> copied;

  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t size_bytes) {
    return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static int64_t size_bytes_for(const std::vector<Tensor>& fields) {
    int64_t size_bytes = 0;
    for (const auto& field : fields) size_bytes += aligned(field.size_bytes());
    return size_bytes;
  }

  void make(device::Device& device, const std::vector<Tensor>& like) {
    memory = device.allocate_host(size_bytes_for(like));
    copied = device.create_event();
    std::byte* at = memory.data();
    for (const auto& field : like) {
      fields.push_back({at, field.shape, field.dtype});
      at += aligned(field.size_bytes());
    }
  }
};

/// Model inputs of a micro-batch, without memory.
std::vector<Tensor> batch_fields(const model::Graph& graph, int64_t micro_batch);

/// The staging, of two, that a load uses.
size_t staging_of(const program::Instruction& load);

/// Whether a load needs a staging: on a device with its own memory; on others for fields that this rank does
/// not need but reads anyway.
bool stages(const program::Instruction& load, size_t fields, device::DeviceKind device);

}  // namespace lockstep::run
