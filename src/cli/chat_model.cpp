#include "src/cli/chat_model.h"

#include <filesystem>

#include "src/base/error.h"
#include "src/chat/reply_rules.h"

namespace m3::cli {

namespace {

chat::ChatTemplate load_template(const std::string& checkpoint) {
  if (!std::filesystem::exists(checkpoint)) fail("{}: there is no such directory", checkpoint);
  if (!chat::has_chat_template(checkpoint)) {
    fail("{} has no chat template, so it cannot chat; add --raw to complete text with it", checkpoint);
  }
  return chat::load_chat_template(checkpoint);
}

}  // namespace

std::string ChatReply::finish_name() const {
  return finish == FinishReason::stop && !output.calls.empty() ? "tool_calls" : finish_reason_name(finish);
}

std::vector<chat::ParseEvent> ReplyReader::take(const Event& event) {
  reply_.text += event.text;
  reply_.ids.insert(reply_.ids.end(), event.ids.begin(), event.ids.end());
  if (!event.ids.empty() && event.usage.reasoning_tokens == 0) parser_.skip_reasoning();
  std::vector<chat::ParseEvent> events = parser_.feed(event.text);
  if (event.finish != FinishReason::none) {
    for (chat::ParseEvent& last : parser_.finish()) events.push_back(std::move(last));
    reply_.finish = event.finish;
    reply_.stop_reason = event.stop_reason;
    reply_.error = event.error;
  }
  reply_.usage = event.usage;
  chat::append_events(reply_.output, events);
  return events;
}

ChatModel::ChatModel(const std::string& checkpoint)
    : template_(load_template(checkpoint)), tokenizer_(Tokenizer::load(checkpoint)) {}

Request ChatModel::request(const chat::Conversation& conversation, const chat::ChatRequest& chat, Request base) const {
  chat::refuse_pictures(conversation.value());
  base.prompt_ids = chat::encode_prompt(tokenizer_, chat::render_prompt(template_, chat));
  chat::apply_reply_rules(conversation.value(), chat, tokenizer_, base);
  return base;
}

ChatReply ChatModel::reply(Engine& engine, const chat::Conversation& conversation, const Request& base,
                           const Show& show, const std::function<bool()>& stop) const {
  const chat::ChatRequest chat = conversation.request();
  ReplyReader reader(chat);
  generate(
      engine, request(conversation, chat, base),
      [&](const Event& event) {
        for (const chat::ParseEvent& part : reader.take(event)) show(part);
      },
      stop);
  return reader.reply();
}

}  // namespace m3::cli
