#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "lockstep/tensor.h"
#include "model/graph.h"
#include "program/program.h"

namespace lockstep::run {

/// Host memory that a batch passes through on its way to a device with memory of its own: one while the other
/// is copied.
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

/// Which of two stagings a load takes.
size_t staging_of(const program::Instruction& load);

/// Whether a load needs one: on a device with memory of its own; elsewhere for fields that this rank does not
/// want, which are read all the same.
bool stages(const program::Instruction& load, size_t fields, device::DeviceKind device);

}  // namespace lockstep::run
