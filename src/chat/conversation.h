// A conversation between replies: a /v1/chat/completions body that grows by questions, replies and tool results.
//
// What it is saved as is such a body too, so that a saved conversation can be rendered, sent to a server or gone on
// with.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/messages.h"
#include "src/chat/parser.h"

namespace m3::chat {

class Conversation {
 public:
  using Json = nlohmann::ordered_json;

  struct OpenCall {
    std::string id, name;
  };

  // Without messages.
  Conversation();
  // A body, checked as a request is, but it may be without messages and end with calls that wait for results. Fields
  // that have no effect here are refused by name. `where` begins errors.
  static Conversation parse(std::string_view json, const std::string& where);
  // What parse() reads, for people too.
  std::string text() const;

  // The system prompt; an empty one takes it away.
  void set_system(const std::string& text);
  std::string system() const;
  // A list of tools, or an object with the member `tools`; an empty list takes them away. Errors as parse().
  void set_tools(std::string_view json, const std::string& where);
  std::vector<std::string> tool_names() const;
  // Absent: the template's default.
  void set_thinking(std::optional<ThinkingMode> mode);
  std::optional<ThinkingMode> thinking() const;
  // Any other member of the body, such as response_format; null takes it away.
  void set(const std::string& name, Json value);

  // A picture or video of a question, as a URL.
  struct Attachment {
    bool video = false;
    std::string url;
  };
  // Pictures stand before the text.
  void add_user(std::string text, const std::vector<Attachment>& attachments = {});
  // The reply; where it was stopped its calls may be cut off, so they are left out, and a reply without anything is
  // no message.
  void add_reply(const ParsedOutput& reply, bool stopped = false);
  // Calls of the last reply that wait for their results, in order.
  std::vector<OpenCall> open_calls() const;
  // The result of the first of them.
  void add_result(std::string text);

  // Whether a question or a result stands last, or a message that is to be continued.
  bool awaits_reply() const;

  // Takes the last question and all that followed away; false where there is none.
  bool undo();
  // Takes the last reply away, if there is one behind the last question or result. False: there is nothing to reply to.
  bool drop_reply();
  // Takes all messages but the system's away.
  void clear();

  // Questions and replies, without the system's messages.
  std::size_t size() const;
  const Json& body() const { return body_; }
  // The body as parse_chat_request() and apply_reply_rules() read it.
  Value value() const;
  // For the next reply. Errors: as parse_chat_request().
  ChatRequest request() const;

 private:
  Json& messages() { return body_["messages"]; }
  const Json& messages() const { return body_["messages"]; }
  std::size_t system_index() const;
  void check(const std::string& where) const;

  Json body_;
};

}  // namespace m3::chat
