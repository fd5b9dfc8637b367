#include "src/server/responses_store.h"

namespace m3::server {

namespace {

constexpr std::size_t message_bytes = 512;  // of one in memory beside its text: a table of its members

// What no other response shares: its list of the conversation's messages points to them.
std::size_t own_bytes(const StoredResponse& response) {
  return response.body.size() + response.messages.size() * sizeof(chat::Value) +
         response.added.size() * sizeof(AddedList::value_type);
}

}  // namespace

void ResponseStore::put(const std::string& id, StoredResponse response, std::size_t added_bytes,
                        std::size_t added_messages) {
  added_bytes += added_messages * message_bytes;
  std::size_t bytes = own_bytes(response) + added_bytes;
  for (const auto& before : response.added) bytes += before->bytes();
  const std::lock_guard lock(mutex_);
  if (const auto old = entries_.find(id); old != entries_.end()) drop(old);
  if (bytes > most_bytes_) return;
  order_.push_back(id);
  response.added.push_back(std::make_shared<const AddedBytes>(bytes_, added_bytes));
  *bytes_ += own_bytes(response);
  entries_.emplace(id, Entry{std::move(response), std::prev(order_.end())});
  // Dropping one frees little where a later one goes on from it. Requests under way may hold the rest.
  while (!entries_.empty() && (entries_.size() > most_entries_ || *bytes_ > most_bytes_)) {
    drop(entries_.find(order_.front()));
  }
}

std::optional<StoredResponse> ResponseStore::get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return std::nullopt;
  order_.splice(order_.end(), order_, entry->second.place);
  return entry->second.response;
}

bool ResponseStore::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  drop(entry);
  return true;
}

std::size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

void ResponseStore::drop(std::map<std::string, Entry>::iterator entry) {
  *bytes_ -= own_bytes(entry->second.response);
  order_.erase(entry->second.place);
  entries_.erase(entry);
}

}  // namespace m3::server
