// A call's arguments from nested tags to JSON text, as they come.
//
// What the schema makes certain is written at once: strings while they grow, objects and arrays member by member.
// What is not certain waits: a number or an enum value for its closing tag, and a value without a type until no
// repeated sibling can turn it into a list.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/schema.h"

namespace m3::chat {

// A value whose type is not known: text, or children.
struct ArgumentNode {
  std::string tag;
  std::string text;
  std::vector<ArgumentNode> children;
};

class ArgumentBuilder {
 public:
  // `schema` types the arguments object; an untyped one makes every value text, list or object by its tags.
  explicit ArgumentBuilder(SchemaView schema);

  // A tag, a piece of text between tags, a closing tag; appends to `out` the JSON that became certain. `raw` is how
  // the tag was written, for where it turns out to be text.
  void open(std::string_view tag, std::string_view raw, std::string& out);
  void text(std::string_view piece, std::string& out);
  void close(std::string_view tag, std::string_view raw, std::string& out);
  // Closes what is open and the object. The JSON written in all is then complete.
  void finish(std::string& out);

 private:
  enum class Mode {
    object,
    array,
    leaf,    // nothing but text so far; may still become an object or an array
    string,  // a string that is being written
    tree,    // kept as nodes until it closes
  };
  struct Frame {
    Mode mode;
    std::string tag;
    SchemaView schema;
    std::string text;                   // leaf
    std::size_t count = 0;              // array: elements; object: members written
    std::set<std::string> written;      // object: their names
    std::string open_array;             // object: the member whose array may still grow ...
    bool has_open_array = false;        // ... if there is one
    std::size_t open_count = 0;         // its elements
    bool continues = false;             // leaf, array: more elements for that array
    bool repeated = false;              // a member that is already written: dropped
    std::vector<ArgumentNode> waiting;  // object: finished nodes of members that may repeat
    std::vector<ArgumentNode> path;     // tree: from its root to the innermost open node
  };

  Frame& top() { return frames_.back(); }
  Frame& owner() { return frames_[frames_.size() - 2]; }
  std::size_t depth() const;
  void open_member(std::string_view tag, std::string& out);
  void open_child(std::string_view tag, const SchemaView& schema);
  bool become_container(std::string& out);
  bool is_sibling(std::string_view tag);
  void begin_value(std::string& out);
  void close_top(std::string& out);
  void close_leaf(std::string& out);
  void close_tree(std::string& out);
  void finish_object(Frame& object, std::string& out);
  static void begin_member(Frame& object, const std::string& name, std::string& out);
  static void extend_array(Frame& object, const std::string& name, const std::vector<std::string>& elements,
                           std::string& out);
  static void end_open_array(Frame& object, std::string& out);
  static void flush_waiting(Frame& object, std::string& out);

  std::vector<Frame> frames_;
};

// JSON for a finished node; several nodes of one name are a list where their schema allows or says nothing.
std::string node_to_json(const ArgumentNode& node, const SchemaView& schema);

}  // namespace m3::chat
