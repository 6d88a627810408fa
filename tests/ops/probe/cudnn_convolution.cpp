#include "cudnn_convolution.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep::ops {
namespace {

constexpr int64_t kImages = 1, kWeights = 2, kOutputs = 3;  // ids of tensors
constexpr int64_t kAlignment = 16;

/// `sizes`: of an outer dimension, channels, height and width; channels lie side by side.
CudnnObject make_tensor(const Cudnn& library, int64_t id, const std::array<int64_t, 4>& sizes,
                        cudnnDataType_t type) {
  const auto [outer, channels, height, width] = sizes;
  CudnnObject tensor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {outer, channels, height, width});
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, {height * width * channels, 1, width * channels, channels});
  tensor.finish();
  return tensor;
}

CudnnObject make_windows(const Cudnn& library, const ProbedConvolution& shape) {
  CudnnObject windows(library, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const std::vector<int64_t> padding(2, shape.padding());
  windows.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  windows.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  windows.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2});
  windows.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding);
  windows.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding);
  windows.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {shape.stride, shape.stride});
  windows.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1});
  windows.finish();
  return windows;
}

/// Names of one operation's attributes.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t windows, images, weights, outputs, alpha, beta;
};

OperationNames names_of(ConvolutionPhase phase) {
  switch (phase) {
    case ConvolutionPhase::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvolutionPhase::input_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  }
}

/// The operation and, before it, what it is made of.
std::vector<CudnnObject> make_operation(const Cudnn& library, const ProbedConvolution& shape, int64_t batch,
                                        ConvolutionPhase phase, cudnnDataType_t result) {
  const auto type_if = [&](bool is_written) { return is_written ? result : CUDNN_DATA_BFLOAT16; };
  std::vector<CudnnObject> parts;
  parts.push_back(make_windows(library, shape));
  parts.push_back(make_tensor(library, kImages, {batch, shape.channels, shape.side, shape.side},
                              type_if(phase == ConvolutionPhase::input_gradient)));
  parts.push_back(make_tensor(library, kWeights,
                              {shape.out_channels, shape.channels, shape.kernel, shape.kernel},
                              type_if(phase == ConvolutionPhase::weight_gradient)));
  parts.push_back(make_tensor(library, kOutputs,
                              {batch, shape.out_channels, shape.out_side(), shape.out_side()},
                              type_if(phase == ConvolutionPhase::forward)));
  const OperationNames names = names_of(phase);
  CudnnObject operation(library, names.type);
  operation.set(names.windows, parts[0]);
  operation.set(names.images, parts[1]);
  operation.set(names.weights, parts[2]);
  operation.set(names.outputs, parts[3]);
  operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0f);
  operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0f);
  operation.finish();
  parts.push_back(std::move(operation));
  return parts;
}

CudnnObject make_graph(const Cudnn& library, const CudnnObject& operation) {
  CudnnObject graph(library, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, library.handle());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finish();
  return graph;
}

void propose(const Cudnn& library, const CudnnObject& graph, cudnnBackendHeurMode_t mode,
             std::vector<CudnnObject>& configurations) {
  CudnnObject heuristic(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  heuristic.finish();
  const int64_t count =
      heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<CudnnObject> made;
  std::vector<cudnnBackendDescriptor_t> room;
  for (int64_t i = 0; i < count; ++i)
    room.push_back(made.emplace_back(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).native());
  const int64_t given =
      heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, room.data());
  for (int64_t i = 0; i < std::min(count, given); ++i)
    configurations.push_back(std::move(made[static_cast<size_t>(i)]));
}

bool is_deterministic(const Cudnn& library, const CudnnObject& configuration) {
  const CudnnObject engine(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t room = engine.native();
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &room);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data());
  return std::count(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == 0;
}

}  // namespace

CudnnConvolution::CudnnConvolution(const Cudnn& library, const ProbedConvolution& shape, int64_t batch,
                                   ConvolutionPhase phase, cudnnDataType_t result)
    : library_(library),
      parts_(make_operation(library, shape, batch, phase, result)),
      graph_(make_graph(library, parts_.back())) {
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    propose(library, graph_, mode, configurations_);
}

CudnnConvolution::Plan CudnnConvolution::plan(int64_t proposal) const {
  const CudnnObject& configuration = configurations_[static_cast<size_t>(proposal)];
  CudnnObject plan(library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, library_.handle());
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  plan.finish();
  int64_t workspace_bytes = 0;
  plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace_bytes);
  return {std::move(plan), is_deterministic(library_, configuration), workspace_bytes};
}

void CudnnConvolution::run(const Plan& plan, void* x, void* w, void* y, void* workspace) const {
  const std::array<void*, 3> pointers{x, w, y};
  CudnnObject pack(library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {kImages, kWeights, kOutputs});
  pack.set_many(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finish();
  library_.check(library_.execute(library_.handle(), plan.object.native(), pack.native()),
                 "cudnnBackendExecute");
}

}  // namespace lockstep::ops
