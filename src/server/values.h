// Request values as other APIs' bodies are translated into chat bodies. All of it is message data.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/chat/template/value.h"

namespace m3::server {

inline chat::Value text_value(std::string text) { return chat::Value::string(std::move(text), chat::Origin::message); }

inline chat::Value flag_value(bool flag) { return chat::Value::boolean(flag, chat::Origin::message); }

inline chat::Value list_value(std::vector<chat::Value> items) {
  return chat::Value::list(std::move(items), chat::Origin::message);
}

inline chat::Value dict_value(chat::Dict dict) {
  return chat::Value::dict(std::make_shared<const chat::Dict>(std::move(dict)), chat::Origin::message);
}

inline void set_member(chat::Dict& dict, std::string name, chat::Value value) {
  dict.set(text_value(std::move(name)), std::move(value));
}

// Two texts with a blank line between them, where both say something.
inline void join(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

inline chat::Value dict_value(std::initializer_list<std::pair<const char*, chat::Value>> members) {
  chat::Dict dict;
  for (const auto& [name, value] : members) set_member(dict, name, value);
  return dict_value(std::move(dict));
}

}  // namespace m3::server
