// Counts and times for /metrics, under vLLM's names: with the prefix "m3:", by flag with "vllm:" as well, so that
// dashboards made for it work.
#pragma once

#include <memory>
#include <string>

#include "m3/engine.h"
#include "src/server/workers.h"

namespace m3::server {

class Metrics {
 public:
  explicit Metrics(bool vllm_names);
  ~Metrics();

  // A reply is over.
  void request_done(const std::string& method, const std::string& route, int status, double seconds);

  // The life of one engine request, from submit() on. Calls come one at a time.
  class Timer {
   public:
    Timer(Metrics& metrics, const Request& request, Clock::time_point submitted);
    void event(const Event& event, Clock::time_point now);

   private:
    struct Sample {
      Clock::time_point first, last;
      bool begun = false;
    };
    Metrics& metrics_;
    Clock::time_point submitted_;
    std::vector<Sample> samples_;
    bool prompt_seen_ = false;
    int open_;                  // samples that have not finished
    std::int64_t longest_ = 0;  // tokens of a finished one
  };

  // Of requests whose pictures are on their way.
  struct Pictures {
    std::size_t waiting = 0;          // requests
    std::int64_t held_bytes = 0;      // of files and values
    std::int64_t decoding_bytes = 0;  // of what is being decoded
  };
  // Prometheus' text format. `engine`: nothing while the model loads.
  std::string text(const std::string& model_name, const Engine* engine, const Pictures& pictures) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace m3::server
