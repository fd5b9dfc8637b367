// Chat beside the model: from a long request to its prompt and ids, and from a model's text to events.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>
#include <string>

#include "src/base/error.h"
#include "src/chat/messages.h"
#include "src/chat/parser.h"
#include "src/chat/prompt.h"
#include "src/chat/template/json.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::chat {
namespace {

// The checkpoint whose template and tokenizer are used: M3_BENCH_CHECKPOINT, else the one that ships. M3_BENCH_TEMPLATE
// and M3_BENCH_TOKENIZER name other files, for instance the published template and a vocabulary of 200,000.
std::string file(const char* name) {
  if (const char* own = std::getenv(name); own != nullptr) return own;
  const char* checkpoint = std::getenv("M3_BENCH_CHECKPOINT");
  return checkpoint != nullptr ? checkpoint : M3_MODELS "/m3-tiny-chat";
}

std::string words(std::mt19937_64& random, int count) {
  static constexpr const char* list[] = {
      "the ",      "report ",  "of ", "lighthouse ", "keeper ",    "shows ", "that ", "42 ",    "values ", "are ",
      "missing, ", "because ", "a ",  "server ",     "stopped.\n", "Then ",  "we ",   "tried ", "again "};
  std::string text;
  for (int i = 0; i < count; ++i) text += list[random() % std::size(list)];
  return text;
}

std::string quoted(const std::string& text) { return to_json(Value::string(text), {}).bytes(); }

// 100 messages, every fourth one a call with its result, and 50 tools of six parameters: about 60,000 tokens.
std::string long_request() {
  std::mt19937_64 random(1);
  std::string body = R"({"messages": [{"role": "system", "content": )" + quoted(words(random, 600)) + "}";
  for (int i = 0; i < 33; ++i) {
    body += R"(, {"role": "user", "content": )" + quoted(words(random, 500)) + "}";
    if (i % 2 == 0) {
      body += R"(, {"role": "assistant", "reasoning_content": )" + quoted(words(random, 200)) + R"(, "content": )" +
              quoted(words(random, 700)) + "}";
      body += R"(, {"role": "user", "content": "And then?"})";
      continue;
    }
    const std::string arguments = R"({"path": "a/b.txt", "lines": [1, 2, 3], "options": {"deep": true, "text": )" +
                                  quoted(words(random, 100)) + "}}";
    body += R"(, {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function":
      {"name": "tool_7", "arguments": )" +
            quoted(arguments) + R"(}}]}, {"role": "tool", "tool_call_id": "c", "content": )" +
            quoted(words(random, 900)) + "}";
  }
  body += R"(], "tools": [)";
  for (int i = 0; i < 50; ++i) {
    body += std::string(i == 0 ? "" : ", ") + R"({"type": "function", "function": {"name": "tool_)" +
            std::to_string(i) + R"(", "description": )" + quoted(words(random, 40)) +
            R"(, "parameters": {"type": "object", "properties": {)";
    for (int p = 0; p < 6; ++p) {
      body += std::string(p == 0 ? "" : ", ") + "\"parameter_" + std::to_string(p) +
              R"(": {"type": "string", "description": )" + quoted(words(random, 12)) + "}";
    }
    body += R"(}, "required": ["parameter_0"]}}})";
  }
  return body + "]}";
}

ChatRequest parse(const std::string& body) {
  return parse_chat_request(parse_json(body, "request"), {.check_tool_results = false});
}

// From the body's bytes to the prompt's: what is done beside tokenising.
void chat_render(benchmark::State& state) {
  const std::string body = long_request();
  const ChatTemplate chat_template = load_chat_template(file("M3_BENCH_TEMPLATE"));
  for (auto _ : state) benchmark::DoNotOptimize(render_prompt(chat_template, parse(body)));
  const Text prompt = render_prompt(chat_template, parse(body));
  state.counters["body_bytes"] = static_cast<double>(body.size());
  state.counters["tokens"] =
      static_cast<double>(encode_prompt(Tokenizer::load(file("M3_BENCH_TOKENIZER")), prompt).size());
}
BENCHMARK(chat_render)->Unit(benchmark::kMillisecond);

// The rendered prompt to ids with its borders of provenance, and the same text without them.
void chat_encode(benchmark::State& state) {
  const ChatTemplate chat_template = load_chat_template(file("M3_BENCH_TEMPLATE"));
  const Tokenizer tokenizer = Tokenizer::load(file("M3_BENCH_TOKENIZER"));
  const Text prompt = render_prompt(chat_template, parse(long_request()));
  for (auto _ : state) {
    if (state.range(0) != 0) {
      benchmark::DoNotOptimize(encode_prompt(tokenizer, prompt));
    } else {
      benchmark::DoNotOptimize(tokenizer.encode(prompt.bytes(), {.parse_special = true}));
    }
  }
}
BENCHMARK(chat_encode)->ArgName("provenance")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// A reply of reasoning, prose and calls, in pieces of about a token's size (4 bytes).
void chat_parse(benchmark::State& state) {
  std::mt19937_64 random(2);
  const std::string ns = "]<]minimax[>[";
  std::string text = words(random, 2000) + "</mm:think>" + words(random, 2000);
  for (int i = 0; i < 40; ++i) {
    text += ns + "<tool_call>\n" + ns + "<invoke name=\"tool_7\">";
    for (int p = 0; p < 6; ++p) {
      const std::string tag = "parameter_" + std::to_string(p) + ">";
      text += ns + "<" + tag + words(random, 40) + ns + "</" + tag;
    }
    text += ns + "</invoke>\n" + ns + "</tool_call>";
  }
  const ChatRequest request = parse(long_request());
  std::size_t tokens = 0;
  for (auto _ : state) {
    OutputParser parser(request.parsed_tools, ThinkingMode::enabled);
    for (std::size_t at = 0; at < text.size(); at += 4, ++tokens) {
      benchmark::DoNotOptimize(parser.feed(std::string_view(text).substr(at, 4)));
    }
    benchmark::DoNotOptimize(parser.finish());
  }
  state.counters["tokens_per_second"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(chat_parse)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace m3::chat

BENCHMARK_MAIN();
