// Saved conversations: any text is one line of error or a conversation whose operations hold.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "m3/error.h"
#include "src/chat/conversation.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using m3::chat::Conversation;
  try {
    Conversation conversation = Conversation::parse({reinterpret_cast<const char*>(data), size}, "input");
    const std::string text = conversation.text();
    if (Conversation::parse(text, "again").text() != text) std::abort();
    while (!conversation.open_calls().empty()) conversation.add_result("r");
    conversation.add_reply({.content = "c", .reasoning = "r", .calls = {{"f", "{}"}}});
    conversation.drop_reply();
    conversation.add_user("u");
    conversation.set_system("s");
    conversation.set_thinking(m3::chat::ThinkingMode::enabled);
    if (!conversation.awaits_reply() || conversation.system() != "s") std::abort();
    if (!conversation.undo()) std::abort();
    conversation.clear();
    if (conversation.size() != 0) std::abort();
  } catch (const m3::Error&) {}
  return 0;
}
