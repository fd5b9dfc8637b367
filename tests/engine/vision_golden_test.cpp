// Features and logits of prompts with pictures against transformers (tools/goldens/vision_cases.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "src/engine/trace.h"
#include "tests/support/golden_case.h"
#include "tests/support/ops_data.h"
#include "tests/support/vision_media.h"

namespace m3::engine {
namespace {

using test::VisionCase;

struct RunOptions {
  std::string backend = "scalar";
  ops::Numerics numerics = ops::Numerics::bf16;
  std::int64_t chunk = 512;
  int threads = 0;
  bool deterministic = true;  // of "cuda"
};

Trace run(const VisionCase& golden, const RunOptions& options) {
  LoadedModelOptions load;
  load.device = options.backend;
  load.deterministic = options.deterministic;
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

void expect_one_pass_as_good(const std::string& name, const std::string& backend, double more_error) {
  const VisionCase golden(name);
  std::vector<model::PatchGrid> grids;
  for (const VisionCase::Media& media : golden.media) grids.push_back({media.t, media.h, media.w});
  const std::int64_t columns = golden.shape("features")[1];
  std::vector<double> theirs;
  for (const float error : golden.floats("bf16_error.features")) theirs.push_back(error);
  for (const bool deterministic : {true, false}) {
    LoadedModelOptions load;
    load.device = backend;
    load.deterministic = deterministic;
    load.vision_patches = 2048;
    load.max_model_len = 128;
    LoadedModel model(golden.open(), load);
    model::VisionTower& tower = model.vision_tower();
    std::int64_t rows = 0;
    for (const model::PatchGrid& grid : grids) rows += tower.feature_rows(grid);
    ASSERT_EQ(rows, golden.shape("features")[0]);
    test::Matrix out(tower.feature_dtype(), rows, columns);
    tower.forward(grids, golden.pixels, out.view());
    const std::vector<float> ours = out.values(), expected = golden.floats("features");
    std::vector<double> errors;
    for (std::int64_t row = 0; row < rows; ++row)
      errors.push_back(test::row_error(ours.data(), expected.data(), row, columns));
    EXPECT_LE(test::median(errors), more_error * test::median(theirs)) << (deterministic ? "deterministic" : "");
    EXPECT_LT(*std::max_element(errors.begin(), errors.end()), 0.1);  // no row of another picture
  }
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

// Attention there rounds its weights too (golden_test.cpp); deterministic and not.
TEST_P(VisionGolden, CudaBf16IsAsGoodAsTheReferencesBf16) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const VisionCase golden(GetParam());
  for (const bool deterministic : {true, false}) {
    const Trace trace = run(golden, {.backend = "cuda", .deterministic = deterministic});
    for (const char* name : {"features", "logits"}) {
      std::vector<double> theirs;
      for (const float error : golden.floats(std::string("bf16_error.") + name)) theirs.push_back(error);
      EXPECT_LE(test::median(errors(trace, golden, name)), 1.05 * test::median(theirs))
          << name << (deterministic ? ", deterministic" : "");
    }
  }
}

TEST_P(VisionGolden, ChunksChangeNothingOnCuda) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const VisionCase golden(GetParam());
  const Trace whole = run(golden, {.backend = "cuda"}), parts = run(golden, {.backend = "cuda", .chunk = 37});
  for (const char* name : {"features", "logits"}) EXPECT_TRUE(parts.at(name).bytes == whole.at(name).bytes) << name;
}

// All pictures of a case in one pass of the tower.
TEST_P(VisionGolden, ManyPicturesInOnePassOnCuda) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  expect_one_pass_as_good(GetParam(), "cuda", 1.05);
}

TEST_P(VisionGolden, ManyPicturesInOnePass) { expect_one_pass_as_good(GetParam(), "scalar", 1); }

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
