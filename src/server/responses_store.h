// Responses that may be asked for again or continued, by id. Bounded: the ones not used for longest go first.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/chat/template/value.h"

namespace m3::server {

struct StoredResponse {
  std::string body;                   // the response object
  std::vector<chat::Value> messages;  // the conversation up to it, as chat messages
};

class ResponseStore {
 public:
  // `most_bytes` counts bodies and what each added to its conversation; shared beginnings count once.
  explicit ResponseStore(std::size_t most_entries = 4096, std::size_t most_bytes = std::size_t{256} << 20)
      : most_entries_(most_entries), most_bytes_(most_bytes) {}

  // `added_bytes`: of the request that made it.
  void put(const std::string& id, StoredResponse response, std::size_t added_bytes);
  std::optional<StoredResponse> get(const std::string& id) const;  // also marks it as used
  bool remove(const std::string& id);
  std::size_t size() const;

 private:
  struct Entry {
    StoredResponse response;
    std::size_t bytes;
    std::list<std::string>::iterator place;
  };
  void drop(std::map<std::string, Entry>::iterator entry);

  std::size_t most_entries_, most_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  mutable std::list<std::string> order_;  // the last used one is last
  std::size_t bytes_ = 0;
};

}  // namespace m3::server
