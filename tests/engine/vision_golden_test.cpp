// Features and logits of prompts with pictures against transformers (tools/goldens/vision_cases.py).
#include <gtest/gtest.h>

#include <cstring>

#include "src/engine/trace.h"
#include "tests/support/golden_case.h"
#include "tests/support/vision_media.h"

namespace m3::engine {
namespace {

using test::VisionCase;

struct RunOptions {
  std::string backend = "scalar";
  ops::Numerics numerics = ops::Numerics::bf16;
  std::int64_t chunk = 512;
  int threads = 0;
};

Trace run(const VisionCase& golden, const RunOptions& options) {
  LoadedModelOptions load;
  load.device = options.backend;
  load.numerics = options.numerics;
  load.threads = options.threads;
  load.max_batched_tokens = options.chunk;
  load.vision_patches = 1024;
  TraceOptions trace_options;
  trace_options.token_ids = golden.ints("token_ids");
  trace_options.media = test::media_of(golden);
  for (const std::int32_t position : golden.ints("positions")) trace_options.positions.push_back(position);
  trace_options.tensors = {"logits"};
  load.max_model_len = std::ssize(trace_options.token_ids);
  load.max_logits_rows = std::ssize(trace_options.positions) + 1;
  const bool fp32 = options.numerics == ops::Numerics::fp32;
  load.kv_cache_dtype = load.index_cache_dtype = fp32 ? "f32" : "bf16";
  LoadedModel model(golden.open(), load);
  return trace(model, trace_options);
}

std::vector<double> errors(const Trace& trace, const VisionCase& golden, const std::string& name) {
  const std::vector<float> expected = golden.floats(name);
  EXPECT_EQ(trace.at(name).shape, golden.shape(name)) << name;
  const auto* ours = reinterpret_cast<const float*>(trace.at(name).bytes.data());
  std::vector<double> result;
  for (std::int64_t row = 0; row < golden.shape(name)[0]; ++row)
    result.push_back(test::row_error(ours, expected.data(), row, golden.shape(name)[1]));
  return result;
}

class VisionGolden : public testing::TestWithParam<std::string> {};

TEST_P(VisionGolden, Fp32NumericsEqualTheReference) {
  const VisionCase golden(GetParam());
  const Trace trace = run(golden, {.numerics = ops::Numerics::fp32});
  for (const char* name : {"features", "logits"}) {
    for (const double error : errors(trace, golden, name)) EXPECT_LT(error, 1e-4) << name;
  }
}

TEST_P(VisionGolden, Bf16IsAsGoodAsTheReferencesBf16) {
  const VisionCase golden(GetParam());
  for (const char* backend : {"scalar", "cpu"}) {
    if (backend == std::string("cpu") && !ops::cpu_backend_available()) continue;
    const Trace trace = run(golden, {.backend = backend});
    for (const char* name : {"features", "logits"}) {
      std::vector<double> theirs;
      for (const float error : golden.floats(std::string("bf16_error.") + name)) theirs.push_back(error);
      EXPECT_LE(test::median(errors(trace, golden, name)), test::median(theirs)) << backend << " " << name;
    }
  }
}

// Chunks that begin and end inside pictures, and other numbers of threads: bit for bit.
TEST_P(VisionGolden, ChunksAndThreadsChangeNothing) {
  const VisionCase golden(GetParam());
  for (const char* backend : {"scalar", "cpu"}) {
    if (backend == std::string("cpu") && !ops::cpu_backend_available()) continue;
    const Trace whole = run(golden, {.backend = backend, .threads = 1});
    for (const RunOptions& other : {RunOptions{.backend = backend, .chunk = 37, .threads = 2},
                                    RunOptions{.backend = backend, .chunk = 1, .threads = 3}}) {
      const Trace trace = run(golden, other);
      for (const char* name : {"features", "logits"})
        EXPECT_TRUE(trace.at(name).bytes == whole.at(name).bytes) << backend << " " << name << ", " << other.chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, VisionGolden, testing::Values("vision_images", "vision_clips", "vision_sizes"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace m3::engine
