// Whole models with M3's 16 query heads a KV head, for which the GPU has kernels of their own and of which no golden is
// stored: the judge in fp32 is the reference, and the processor's bf16 says how far rounding alone leads from it.
#include <gtest/gtest.h>

#include <map>

#include "src/engine/trace.h"
#include "tests/support/golden_case.h"
#include "tests/support/test_configs.h"

namespace m3::engine {
namespace {

constexpr std::int64_t prompt = 2400;  // 19 blocks, of which 16 are chosen

ModelConfig wide_heads() {
  nlohmann::json config = test::small_config();
  nlohmann::json& text = config["text_config"];
  text["hidden_size"] = 512;
  text["num_attention_heads"] = 32;
  text["num_key_value_heads"] = 2;
  text["intermediate_size"] = text["shared_intermediate_size"] = 256;
  text["dense_intermediate_size"] = 512;
  text["vocab_size"] = 320;
  text["num_local_experts"] = 8;
  text["num_experts_per_tok"] = 4;
  text["sparse_attention_config"]["sparse_num_index_heads"] = 2;
  text["sparse_attention_config"]["sparse_topk_blocks"] = 16;
  return parse_config(config.dump(), "test");
}

struct Numbers {
  std::string device = {};
  std::string format = {};
  std::string kv = "bf16", index = "bf16";
  ops::Numerics numerics = ops::Numerics::bf16;
  std::int64_t chunk = 512;
  bool deterministic = false;
};

Trace run(const Numbers& numbers) {
  LoadedModelOptions load;
  load.device = numbers.device;
  load.deterministic = numbers.deterministic;
  load.numerics = numbers.numerics;
  load.max_batched_tokens = numbers.chunk;
  load.max_model_len = prompt;
  load.kv_cache_dtype = numbers.kv;
  load.index_cache_dtype = numbers.index;
  TraceOptions options;
  for (std::int32_t i = 0; i < prompt; ++i) options.token_ids.push_back((i * i * 7 + i / 3 * 31) % 320);
  for (std::int64_t i = 4; i < prompt; i += 11) options.positions.push_back(i);
  options.tensors = {"hidden", "logits"};
  options.shuffle_pages = true;
  load.max_logits_rows = std::ssize(options.positions) + 1;
  LoadedModel model(Checkpoint::random(wide_heads(), numbers.format, 5), load);
  return trace(model, options);
}

// Medians over the positions, by tensor.
std::map<std::string, double> errors(const Trace& trace, const Trace& reference) {
  std::map<std::string, double> result;
  const auto values = [](const TraceTensor& tensor) { return reinterpret_cast<const float*>(tensor.bytes.data()); };
  for (const auto& [name, tensor] : reference) {
    std::vector<double> rows;
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row)
      rows.push_back(test::row_error(values(trace.at(name)), values(tensor), row, tensor.shape.back()));
    result[name] = test::median(rows);
  }
  return result;
}

struct Mix {
  const char* format;
  const char* kv;
  const char* index;
};

class WideHeads : public testing::TestWithParam<Mix> {
 protected:
  // `more_error` of medians of 218 positions.
  void expect_as_good(const std::vector<Numbers>& all, double more_error) {
    const Mix& mix = GetParam();
    const Trace reference =
        run({.device = "scalar", .format = mix.format, .kv = "f32", .index = "f32", .numerics = ops::Numerics::fp32});
    const std::string processor = ops::cpu_backend_available() ? "cpu" : "scalar";
    const auto bar =
        errors(run({.device = processor, .format = mix.format, .kv = mix.kv, .index = mix.index}), reference);
    for (Numbers numbers : all) {
      numbers.format = mix.format, numbers.kv = mix.kv, numbers.index = mix.index;
      for (const auto& [name, error] : errors(run(numbers), reference)) {
        EXPECT_LE(error, more_error * bar.at(name) + 1e-7)
            << name << ", passes of " << numbers.chunk << (numbers.deterministic ? ", deterministic" : "");
        if (name != "hidden.0") {
          EXPECT_GT(error, 1e-5) << name;  // else it did not round
        }
      }
    }
  }
};

// Between the judge's bf16 and the processor's the ratios are 1.001 to 1.007; a GPU rounds attention's weights too, one
// more of some eight roundings of a layer. Prompts, chunks of them, groups of three as a verification has them, and single
// tokens.
TEST_P(WideHeads, CudaIsAsGoodAsTheProcessor) {
  if (const std::string reason = ops::no_cuda_reason(); !reason.empty()) GTEST_SKIP() << reason;
  expect_as_good({{.device = "cuda", .chunk = prompt},
                  {.device = "cuda", .chunk = 512},
                  {.device = "cuda", .chunk = 3},
                  {.device = "cuda", .chunk = 1},
                  {.device = "cuda", .chunk = 512, .deterministic = true}},
                 1.15);
}

INSTANTIATE_TEST_SUITE_P(Mixes, WideHeads,
                         testing::Values(Mix{"bf16", "bf16", "bf16"}, Mix{"mxfp4", "fp8", "fp8"},
                                         Mix{"nvfp4", "bf16", "fp8"}),
                         [](const auto& tested) { return std::string(tested.param.format); });

}  // namespace
}  // namespace m3::engine
