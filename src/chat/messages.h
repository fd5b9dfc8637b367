// A /v1/chat/completions body, checked and brought into the form that M3's template reads (spec §5.4, addenda §12).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/chat/parser.h"
#include "src/chat/template/value.h"

namespace m3::chat {

struct ChatRequestOptions {
  // M3's template has one place for system text. Later system and developer messages are appended to it, unless this
  // refuses them.
  bool refuse_late_system = false;
  // Every tool message must answer a call of the assistant message before it, by its id where it gives one, and no
  // call may stay without an answer when the model is to go on.
  bool check_tool_results = true;
};

struct ToolChoice {
  enum class Kind : std::uint8_t {
    automatic,  // the model decides
    none,       // no call
    required,   // at least one call, of any tool
    named,      // a call of the tool `name`
  };
  Kind kind = Kind::automatic;
  std::string name;
};

// A picture or video among the messages.
struct MediaPart {
  bool video = false;
  std::string path;  // in the body: "messages[2].content[0]"
  Value part;        // a dict; its data may be missing
};

struct ChatRequest {
  Value messages;                                  // a list of dicts, normalised
  Value tools;                                     // as given, or none
  Tools parsed_tools;                              // the same for the parser; never null
  ToolChoice tool_choice;                          // what is named is among the tools
  bool parallel_tool_calls = true;                 // false: one call at most
  std::optional<ThinkingMode> thinking;            // absent: the template's default, adaptive
  std::shared_ptr<const Dict> template_arguments;  // chat_template_kwargs, with thinking_mode filled in
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::vector<MediaPart> media;          // in the order of `messages`, which is the prompt's
  AnswerForm answer = AnswerForm::free;  // whether response_format or a field like it asks for a form

  // How the reply begins, for the parser.
  ThinkingMode mode() const { return thinking.value_or(ThinkingMode::adaptive); }
  // Of a reply to this request.
  OutputParser parser() const { return {parsed_tools, mode(), continue_final_message, answer}; }
};

// Errors: one line that begins with the path of the field, such as "messages[2].content: ...".
//
// - tool call arguments are parsed from JSON text; none or null are no arguments
// - image_url, input_image, video_url and input_video parts become image and video
// - a root message may only stand first; system and developer texts behind the first are appended to it after a blank
//   line, in their order
// - reasoning is read from reasoning_content, reasoning or thinking
// - null members of a message are dropped, and a tool result without content is empty
// - thinking.type, reasoning_effort "none" and enable_thinking all become thinking_mode; contradictions are errors.
//   The other efforts have no place in M3's prompt: they are checked and leave the mode as it is
ChatRequest parse_chat_request(const Value& body, const ChatRequestOptions& options = {});

}  // namespace m3::chat
