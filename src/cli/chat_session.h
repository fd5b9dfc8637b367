// A chat line by line: questions, tool results and / commands. Knows no terminal and no engine.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/conversation.h"
#include "src/cli/chat_model.h"
#include "src/cli/chat_view.h"

namespace m3::cli {

class ChatSession {
 public:
  // Generates and shows a reply. May throw m3::Error: the line is shown and the chat goes on.
  using Answer = std::function<ChatReply(const chat::Conversation&)>;

  // Looks at a picture or video before it is attached. Errors: m3::Error, what is wrong with it.
  using Look = std::function<void(const chat::Conversation::Attachment&)>;

  // `attachments`: of the first question.
  ChatSession(chat::Conversation conversation, Answer answer, Look look, ChatView& view,
              std::vector<chat::Conversation::Attachment> attachments = {})
      : conversation_(std::move(conversation)),
        answer_(std::move(answer)),
        look_(std::move(look)),
        view_(view),
        attachments_(std::move(attachments)) {}

  // What stands before the next line: "> ", or whose result is asked for.
  std::string prompt() const;
  // One line (or several, joined). False: the person has had enough.
  bool handle(const std::string& line);

  const chat::Conversation& conversation() const { return conversation_; }

 private:
  bool command(const std::string& line);
  void ask(const std::string& question);
  void give_result(const std::string& result);
  bool reply();
  void regenerate();
  void change_system(const std::string& text);
  void change_thinking(const std::string& word);
  void change_tools(const std::string& path);
  void save(const std::string& path);
  void load(const std::string& path);
  void attach(const std::string& path, bool video);

  chat::Conversation conversation_;
  Answer answer_;
  Look look_;
  ChatView& view_;
  std::vector<chat::Conversation::Attachment> attachments_;  // of the next question
};

}  // namespace m3::cli
