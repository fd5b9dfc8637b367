// Any text as a chat template, rendered over a small conversation: an error or a result, within the bounds.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "m3/error.h"
#include "src/chat/template/json.h"
#include "src/chat/template/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace m3::chat;
  static const Value context = parse_json(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é\n"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, null, 2.5]}}}]}],
          "tools": [{"function": {"name": "f"}}], "xs": [3, 1, 2], "d": {"b": 1, "a": "x"}, "s": "Hello, World", "n": 7})",
      "context");
  try {
    Template program(std::string_view(reinterpret_cast<const char*>(data), size));
    program.limits.work = 200'000;
    program.limits.output_bytes = std::size_t{1} << 20;
    program.strftime_now = [](const std::string& format) { return format; };
    const Text text = program.render(context.as_dict());
    std::size_t total = 0;
    text.for_each_run([&](std::string_view run, Origin) { total += run.size(); });
    if (total != text.size()) __builtin_trap();
  } catch (const m3::Error&) {}
  return 0;
}
