#include "src/ops/cuda/experts_sm90.cuh"

#include "src/ops/cuda/launch.cuh"

namespace m3::ops::cuda {

namespace {

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

template <class Shape>
cudaError_t launch_as(const ExpertsArgs& args, cudaStream_t stream) {
  static int allowed = 0;
  const auto kernel = experts_sm90<Shape>;
  if (const auto error = allow_shared(kernel, Shape::shared_bytes, allowed); error != cudaSuccess) return error;
  return launch(kernel, static_cast<unsigned>(multiprocessors()), Shape::threads, Shape::shared_bytes, stream, args);
}

}  // namespace

bool experts_take_sm90(const ExpertsArgs& args, const WeightPart& gate, const WeightPart& up, const WeightPart& down) {
  const bool nibbles = gate.format == WeightFormat::mxfp4 || gate.format == WeightFormat::nvfp4;
  if (!nibbles && gate.format != WeightFormat::mxfp8) return false;
  for (const WeightPart* weight : {&gate, &up, &down}) {
    if (weight->format != gate.format || !aligned(weight->values) || !aligned(weight->scales)) return false;
  }
  const int step = nibbles ? 256 : 128;
  const int tokens = args.items / args.list_divisor;
  return args.expert_ids != nullptr && args.items > 0 && args.items <= experts_items &&
         tokens <= (nibbles ? experts_tokens : experts_tokens_mxfp8) && args.groups > 0 && args.groups <= few_groups &&
         args.hidden % step == 0 && args.width % step == 0 && args.hidden <= experts_hidden &&
         args.width <= experts_hidden / 2 && args.x_stride % 8 == 0 && aligned(args.x) && has_decode_kernels();
}

cudaError_t launch_experts_sm90(const ExpertsArgs& args, cudaStream_t stream) {
  switch (args.format) {
    case WeightFormat::mxfp4: return launch_as<ExpertsShape<WeightFormat::mxfp4, 12, 8>>(args, stream);
    case WeightFormat::nvfp4: return launch_as<ExpertsShape<WeightFormat::nvfp4, 12, 7>>(args, stream);
    case WeightFormat::mxfp8: return launch_as<ExpertsShape<WeightFormat::mxfp8, 12, 4>>(args, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace m3::ops::cuda
