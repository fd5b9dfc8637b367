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

ChatModel::ChatModel(const std::string& checkpoint, const media::MediaOptions& media)
    : template_(load_template(checkpoint)), tokenizer_(Tokenizer::load(checkpoint)), media_options_(media) {}

Request ChatModel::request(const chat::Conversation& conversation, const chat::ChatRequest& chat, Request base) const {
  static_cast<void>(media::read_references(chat, conversation.value(), media_options_));
  base.prompt_ids = chat::encode_prompt(tokenizer_, chat::render_prompt(template_, chat));
  chat::apply_reply_rules(conversation.value(), chat, tokenizer_, base);
  return base;
}

void ChatModel::add_pictures(const ModelInfo& model, const chat::Conversation& conversation,
                             const chat::ChatRequest& chat, Request& request, const std::function<bool()>& stop) const {
  std::vector<media::Reference> references = media::read_references(chat, conversation.value(), media_options_);
  if (references.empty()) return;
  const std::vector<media::Prepared> prepared = load(model, std::move(references), stop);
  request.prompt_ids = media::expand_prompt(tokenizer_, model.media, request.prompt_ids, prepared);
  request.media = media::media_of(prepared);
}

std::vector<media::Prepared> ChatModel::load(const ModelInfo& model, std::vector<media::Reference> references,
                                             const std::function<bool()>& stop) const {
  for (media::Reference& reference : references) {  // a person knows a file by its name
    if (!media_options_.sources.web && !vision::web_host(reference.url).empty()) {
      fail(
          "{}: {}: pictures and videos from the web are not allowed here; allow their host with "
          "--allowed-media-domains (* is every public one), or give a file by --{}",
          reference.path, vision::short_url(reference.url), reference.kind == Media::Kind::video ? "video" : "image");
    }
    if (reference.url.starts_with("file:///")) reference.path = vision::decode_percent(reference.url.substr(7));
  }
  media::check_model_takes(references, model.media);
  if (media_ == nullptr) media_ = std::make_unique<media::MediaLoader>(media_options_);
  return media_->load_now(std::move(references), model.media, model.max_model_len, stop);
}

void ChatModel::look_at(const ModelInfo& model, const chat::Conversation::Attachment& shown,
                        const std::function<bool()>& stop) const {
  media::Reference reference = {.kind = shown.video ? Media::Kind::video : Media::Kind::image,
                                .url = shown.url,
                                .path = {},
                                .image = media_options_.image,
                                .video = media_options_.video};
  static_cast<void>(load(model, {std::move(reference)}, stop));
}

ChatReply ChatModel::reply(Engine& engine, const chat::Conversation& conversation, const Request& base,
                           const Show& show, const std::function<bool()>& stop) const {
  const chat::ChatRequest chat = conversation.request();
  ReplyReader reader(chat);
  Request asked = request(conversation, chat, base);
  add_pictures(engine.info(), conversation, chat, asked, stop);
  generate(
      engine, std::move(asked),
      [&](const Event& event) {
        for (const chat::ParseEvent& part : reader.take(event)) show(part);
      },
      stop);
  return reader.reply();
}

}  // namespace m3::cli
