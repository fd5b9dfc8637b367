// Any text as config.json and as generation_config.json: read, or refused with an m3::Error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/error.h"
#include "src/checkpoint/config.h"
#include "src/checkpoint/generation_config.h"
#include "src/checkpoint/json_fields.h"
#include "src/checkpoint/quantization.h"
#include "src/checkpoint/text_layout.h"
#include "src/checkpoint/vision_layout.h"

namespace {

template <typename Work>
void expect_only_errors(Work work) {
  try {
    work();
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  expect_only_errors([&] { m3::parse_generation_config(text, "input"); });
  expect_only_errors([&] {
    const m3::ModelConfig config = m3::parse_config(text, "input");
    static_cast<void>(config.max_context());
    if (config.vision && config.vision->num_hidden_layers <= 64) m3::vision_layout(config);
    const m3::Json parsed = m3::parse_json_object(text, "input");
    const m3::QuantizationPlan plan = m3::parse_quantization(m3::JsonFields(parsed, "input"), config.layers);
    for (const char* module : {"language_model.model.layers.1.self_attn.q_proj", "language_model.lm_head",
                               "language_model.model.layers.2.block_sparse_moe.experts.3.w1"}) {
      plan.contradiction(module, m3::WeightFormat::mxfp8);
    }
  });
  return 0;
}
