// An engine that answers chat requests through its checkpoint's template.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/chat/conversation.h"
#include "src/chat/parser.h"
#include "src/chat/prompt.h"
#include "src/media/prompt.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::cli {

struct ChatReply {
  chat::ParsedOutput output;
  std::string text;  // as the model wrote it
  std::vector<TokenId> ids;
  FinishReason finish = FinishReason::none;
  std::string stop_reason;
  std::string error;  // one line, with FinishReason::error
  Usage usage;

  // As the APIs say it: "tool_calls" where the reply ended by itself and has calls.
  std::string finish_name() const;
};

// One sample's events, parsed.
class ReplyReader {
 public:
  explicit ReplyReader(const chat::ChatRequest& request) : parser_(request.parser()) {}

  // What became certain with the event; with the last one, all that was held back.
  std::vector<chat::ParseEvent> take(const Event& event);
  const ChatReply& reply() const { return reply_; }

 private:
  chat::OutputParser parser_;
  ChatReply reply_;
};

class ChatModel {
 public:
  // `checkpoint`: the directory with template and tokenizer. Errors: it has no template; the line says what to do.
  explicit ChatModel(const std::string& checkpoint, const media::MediaOptions& media = {});

  // The request for the engine: prompt ids, reasoning and the form of the reply; the rest is `base`'s. `chat` is the
  // conversation's request. Pictures are placeholders yet. Errors: what the template raises, what cannot be enforced,
  // and what is wrong with pictures before they are looked at.
  Request request(const chat::Conversation& conversation, const chat::ChatRequest& chat, Request base) const;
  // The conversation's pictures into the request, fetched and decoded. Errors: the model takes none, and what is wrong
  // with one; `stop` is polled.
  void add_pictures(const ModelInfo& model, const chat::Conversation& conversation, const chat::ChatRequest& chat,
                    Request& request, const std::function<bool()>& stop) const;

  // One of them on its own: that the model takes its kind, and that it can be read and decoded. Errors: as above.
  void look_at(const ModelInfo& model, const chat::Conversation::Attachment& shown,
               const std::function<bool()>& stop) const;

  using Show = std::function<void(const chat::ParseEvent&)>;
  // Generates one reply, on the caller's thread; `stop` is polled. Errors: those of a request, and what the engine
  // refuses.
  ChatReply reply(Engine& engine, const chat::Conversation& conversation, const Request& base, const Show& show,
                  const std::function<bool()>& stop) const;

 private:
  chat::ChatTemplate template_;
  Tokenizer tokenizer_;
  media::MediaOptions media_options_;
  std::vector<media::Prepared> load(const ModelInfo& model, std::vector<media::Reference> references,
                                    const std::function<bool()>& stop) const;
  mutable std::unique_ptr<media::MediaLoader> media_;  // from the first picture on
};

}  // namespace m3::cli
