// Responses that may be asked for again or continued, by id. Bounded: the ones not used for longest go first.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/chat/template/value.h"

namespace m3::server {

// What one request added to a conversation. It is held, and counts, until the last response behind it has gone.
class AddedBytes {
 public:
  using Total = std::shared_ptr<std::atomic<std::size_t>>;
  AddedBytes(Total total, std::size_t bytes) : total_(std::move(total)), bytes_(bytes) { *total_ += bytes_; }
  ~AddedBytes() { *total_ -= bytes_; }
  AddedBytes(const AddedBytes&) = delete;
  AddedBytes& operator=(const AddedBytes&) = delete;
  std::size_t bytes() const { return bytes_; }

 private:
  Total total_;
  std::size_t bytes_;
};
using AddedList = std::vector<std::shared_ptr<const AddedBytes>>;

struct StoredResponse {
  std::string body;                   // the response object
  std::vector<chat::Value> messages;  // the conversation up to it, as chat messages
  AddedList added;                    // by the requests before it; put() adds its own
};

class ResponseStore {
 public:
  // `most_bytes` counts bodies, conversations and each response's list of its messages; beginnings that several share count once, and for as long as any of
  // them is there.
  explicit ResponseStore(std::size_t most_entries = 4096, std::size_t most_bytes = std::size_t{256} << 20)
      : most_entries_(most_entries), most_bytes_(most_bytes) {}

  // `added_bytes`, `added_messages`: of the request that made it. A conversation of more than all bytes is not kept.
  void put(const std::string& id, StoredResponse response, std::size_t added_bytes, std::size_t added_messages);
  std::optional<StoredResponse> get(const std::string& id) const;  // also marks it as used
  bool remove(const std::string& id);
  std::size_t size() const;

 private:
  struct Entry {
    StoredResponse response;
    std::list<std::string>::iterator place;
  };
  void drop(std::map<std::string, Entry>::iterator entry);

  std::size_t most_entries_, most_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  mutable std::list<std::string> order_;  // the last used one is last
  AddedBytes::Total bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace m3::server
