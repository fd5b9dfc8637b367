// The way from a request to its reply: submits to the engine, carries its events to a worker, and calls a ReplyWriter
// there. Handlers for new APIs write a ReplyWriter and call start_generation().
//
//   engine thread: sink -> queue (never blocks)
//   worker:        queue -> ReplyWriter::event(...) -> Exchange::write(...)
//
// A client that goes cancels its requests in the engine at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "m3/request.h"
#include "src/server/errors.h"
#include "src/server/http.h"
#include "src/server/workers.h"

namespace m3::server {

class Server;

// Makes a reply of events. All calls come one at a time, none after finish() or fail().
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  // What could be queued is: a stream sends its headers here.
  virtual void begin() {}
  // An event of the prompt with that index in start_generation()'s list. Never one with FinishReason::error.
  virtual void event(std::size_t prompt, const Event& event, Clock::time_point now) = 0;
  // When tick() is to be called, for what waits; nothing: not at all.
  virtual std::optional<Clock::time_point> due() const { return std::nullopt; }
  virtual void tick(Clock::time_point) {}
  // Every sample of every request has finished.
  virtual void finish() = 0;
  // In place of finish(): the engine failed. Only where the reply has begun; else an error reply is sent instead.
  virtual void fail(const ApiError& error) = 0;
};

// Queues the request for each of the prompts (its own prompt_ids count for nothing) and returns. Where the engine's
// queue takes only some, the others follow as it empties; each is made when it is queued, since there may be many
// prompts and the rest of a request may be large. Errors: what Engine::submit() throws for one of those that are queued
// now; nothing is queued then, and the writer was not called.
void start_generation(Server& server, const std::shared_ptr<Exchange>& exchange, Request request,
                      std::vector<std::vector<TokenId>> prompts, std::unique_ptr<ReplyWriter> writer);
// The same for its own prompt_ids.
void start_generation(Server& server, const std::shared_ptr<Exchange>& exchange, Request request,
                      std::unique_ptr<ReplyWriter> writer);

}  // namespace m3::server
