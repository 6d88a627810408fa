#pragma once

// A little of cuDNN's graph interface, loaded when the program runs: lockstep does not need cuDNN, and is
// only compared with it.

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::ops {

/// The library and a handle of it.
class Cudnn {
 public:
  /// Throws DeviceError if there is no libcudnn.so.9 or it does not start.
  explicit Cudnn(cudaStream_t stream);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;

  /// Throws DeviceError with the library's words.
  void check(cudnnStatus_t status, const char* call) const;
  cudnnHandle_t handle() const { return handle_; }
  std::string version() const;

 private:
  template <class Function>
  Function function(const char* name) const;

  void* library_;
  cudnnHandle_t handle_ = nullptr;

 public:
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// One of cuDNN's opaque objects: attributes first, then finish().
class CudnnObject {
 public:
  CudnnObject(const Cudnn& library, cudnnBackendDescriptorType_t type);
  ~CudnnObject();
  CudnnObject(CudnnObject&& other) noexcept : library_(other.library_), object_(other.object_) {
    other.object_ = nullptr;
  }
  CudnnObject(const CudnnObject&) = delete;

  template <class Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const Value& value) {
    set_many(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set_many(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const CudnnObject& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.object_);
  }
  void set_many(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void* values);
  /// How many values there are; writes at most `room` of them.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room,
              void* values) const;
  void finish();
  cudnnBackendDescriptor_t native() const { return object_; }

 private:
  const Cudnn* library_;
  cudnnBackendDescriptor_t object_ = nullptr;
};

}  // namespace lockstep::ops
