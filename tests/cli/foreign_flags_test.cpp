// Launch scripts of other servers.
#include "src/cli/foreign_flags.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "m3/error.h"
#include "src/cli/serve_options.h"

namespace m3::cli {
namespace {

struct Translated {
  std::string words, note, error;
};

Translated translated(const std::string& line) {
  CLI::App command;
  ServeOptions options;
  add_model_options(command, options.model);
  add_serve_options(command, options);
  std::vector<std::string> words = {"serve"};
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  Translated out;
  try {
    out.words = fmt::format("{}", fmt::join(translate_foreign_flags(command, words, out.note), " "));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << line;
    out.error = error.what();
    return out;
  }
  return out;
}

TEST(ForeignFlags, AreSaidInOurs) {
  const std::pair<const char*, const char*> cases[] = {
      {"DIR --max-model-len 32k --port 8000", "serve DIR --max-model-len 32k --port 8000"},
      {"--served-model-name M3 --model DIR", "serve DIR --served-model-name M3"},
      {"--model-path=DIR --tp 1 --context-length 450000", "serve DIR --tensor-parallel-size=1 --max-model-len=450000"},
      {"DIR -tp 2", "serve DIR --tensor-parallel-size=2"},
      {"DIR --max_model_len=4096 --gpu_memory_utilization 0.5",
       "serve DIR --max-model-len=4096 --gpu-memory-utilization 0.5"},
      {"DIR --attention_config.indexer_kv_dtype fp8", "serve DIR --index-cache-dtype=fp8"},
      {"DIR --mem-fraction-static 0.9 --max-running-requests 4 --chunked-prefill-size 4096 --disable-radix-cache",
       "serve DIR --memory-utilization=0.9 --max-num-seqs=4 --max-num-batched-tokens=4096 --no-enable-prefix-caching"},
      {"-m DIR -c 8192 -np 4 -a M3 -t 2",
       "serve DIR --max-model-len=8192 --max-num-seqs=4 --served-model-name=M3 --threads=2"},
      {"DIR -pp 1 -dp 1 --nnodes 1 --load-format auto", "serve DIR"},
      // A value that looks like a flag stays as it is.
      {"DIR --api-key=-tp", "serve DIR --api-key=-tp"},
  };
  for (const auto& [line, expected] : cases) {
    const Translated got = translated(line);
    EXPECT_EQ(got.words, expected) << line << got.error;
    EXPECT_EQ(got.note, "") << line;
  }
}

TEST(ForeignFlags, ACheckpointBehindAListIsNotOneOfItsWords) {
  const std::pair<const char*, const char*> refused[] = {
      {"--api-key KEY /models/M3", "--api-key /models/M3: a checkpoint behind a list"},
      {"--port 1 --served-model-name a b models/M3 --log-prompts", "--served-model-name models/M3: "},
      {"--allowed-media-domains=example.org ./M3", "--allowed-media-domains ./M3: "},
      {"--media-private-hosts a:1 .", "--media-private-hosts .: "},
  };
  for (const auto& [line, expected] : refused) {
    EXPECT_TRUE(translated(line).error.starts_with(expected)) << line << ": " << translated(line).error;
  }
  for (const char* line : {"/models/M3 --served-model-name M3 org/M3", "--served-model-name org/M3",
                           "--served-model-name a b --port 1 /models/M3", "--served-model-name a b --log-prompts DIR/",
                           "--stop-nothing --api-key one two", "--served-model-name a org/b --model DIR",
                           "--mm-processor-kwargs {} DIR/ --api-key a b/c"}) {
    EXPECT_EQ(translated(line).error, "") << line;
  }
}

TEST(ForeignFlags, MembersOfJsonAreGathered) {
  const std::pair<const char*, const char*> cases[] = {
      {"DIR --limit-mm-per-prompt.image 2", R"(serve DIR --limit-mm-per-prompt={"image":2})"},
      {"DIR --limit_mm_per_prompt.image=2 --port 1 --limit-mm-per-prompt.video.count 1",
       R"(serve DIR --port 1 --limit-mm-per-prompt={"image":2,"video":{"count":1}})"},
      {"DIR --mm_processor_kwargs.max_long_side_pixel 504",
       R"(serve DIR --mm-processor-kwargs={"max_long_side_pixel":504})"},
      {"DIR --default-chat-template-kwargs.thinking_mode disabled",
       R"(serve DIR --default-chat-template-kwargs={"thinking_mode":"disabled"})"},
  };
  for (const auto& [line, expected] : cases) EXPECT_EQ(translated(line).words, expected) << translated(line).error;
  EXPECT_EQ(translated("DIR --limit-mm-per-prompt.image").error, "--limit-mm-per-prompt.image: a value is missing");
  EXPECT_NE(translated("DIR --limit-mm-per-prompt.image 2 --limit-mm-per-prompt.image.count 2").error, "");
  EXPECT_EQ(translated("DIR --enable-multimodal").note, "note: without effect here: --enable-multimodal");
}

TEST(ForeignFlags, WithoutEffectAreNamedInALine) {
  const Translated vllm = translated(
      "DIR --tensor-parallel-size 1 --enable-expert-parallel --block-size 128 --language-model-only "
      "--attention-backend TRITON_ATTN --moe-backend=aiter --max-cudagraph-capture-size 64 --async-scheduling");
  EXPECT_EQ(vllm.words, "serve DIR --tensor-parallel-size 1 --block-size 128 --language-model-only");
  EXPECT_EQ(vllm.note,
            "note: without effect here: --enable-expert-parallel, --attention-backend, "
            "--moe-backend, --max-cudagraph-capture-size, --async-scheduling");
  const Translated llama = translated("-m DIR -ngl 99 -fa on --jinja --port 8080 -fa");
  EXPECT_EQ(llama.words, "serve DIR --port 8080");
  EXPECT_EQ(llama.note, "note: without effect here: -ngl, -fa, --jinja, -fa");
}

TEST(ForeignFlags, ThatAskForWhatIsNotThereAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"DIR --speculative-config {}", "--speculative-config: drafts are not implemented"},
      {"DIR --speculative_config={}", "--speculative-config: "},
      {"DIR -pp 2", "-pp 2: one device"},
      {"DIR --data-parallel-size=8", "--data-parallel-size 8: one device"},
      {"DIR --load-format gguf", "--load-format gguf: weights are read from safetensors"},
      {"DIR --hf-overrides {}", "--hf-overrides: the file beside the weights"},
      {"DIR --kv-transfer-config {}", "--kv-transfer-config: "},
      {"DIR --seed 0", "--seed: requests say it"},
      {"DIR -hf MiniMaxAI/MiniMax-M3", "-hf: nothing is downloaded"},
      {"DIR --cache-type-k q8_0", "--cache-type-k: --kv-cache-dtype"},
      {"DIR --attention-backend", "--attention-backend: a value is missing"},
  };
  for (const auto& [line, expected] : cases) {
    EXPECT_TRUE(translated(line).error.starts_with(expected)) << line << ": " << translated(line).error;
  }
}

}  // namespace
}  // namespace m3::cli
