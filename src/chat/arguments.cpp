#include "src/chat/arguments.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "src/chat/coerce.h"

namespace m3::chat {
namespace {

// Tags nested deeper than this are text: what they hold is delivered, and nothing recursive can overflow.
constexpr std::size_t max_depth = 256;

bool is_blank(std::string_view text) { return trim_spaces(text).empty(); }

// Certain enough to write member by member; all else is kept as nodes first.
bool can_stream(const SchemaView& schema) {
  if (!schema.typed()) return false;
  const bool container = schema.allows(kind_object | kind_array);
  return !container || schema.only(kind_object | kind_null) || schema.only(kind_array | kind_null);
}

bool is_item_list(const ArgumentNode& node, const SchemaView& schema) {
  if (node.children.empty()) return false;
  if (schema.allows(kind_array) && !schema.allows(kind_object)) return true;
  if (schema.declares("item") || schema.only(kind_object | kind_null)) return false;
  return std::all_of(node.children.begin(), node.children.end(),
                     [](const ArgumentNode& child) { return child.tag == "item"; });
}

void append_element(std::string& out, const std::string& element) {
  if (out.size() > 1) out += ',';
  out += element;
}

// Several nodes of one name.
std::string merge(const std::vector<const ArgumentNode*>& nodes, const SchemaView& schema) {
  if (nodes.size() == 1 || (schema.typed() && !schema.allows(kind_array))) return node_to_json(*nodes.front(), schema);
  std::string out = "[";
  std::size_t index = 0;
  for (const ArgumentNode* node : nodes) {
    if (is_item_list(*node, schema)) {
      for (const ArgumentNode& item : node->children) append_element(out, node_to_json(item, schema.item(index++)));
    } else if (node->children.empty() && schema.allows(kind_array)) {
      for (const std::string& element : coerce_elements(node->text, schema)) append_element(out, element);
    } else {
      append_element(out, node_to_json(*node, schema.item(index++)));
    }
  }
  out += ']';
  return out;
}

std::string members_to_json(const std::vector<ArgumentNode>& nodes, const SchemaView& schema) {
  std::vector<std::vector<const ArgumentNode*>> groups;
  std::unordered_map<std::string_view, std::size_t> group_of;  // by tag
  for (const ArgumentNode& node : nodes) {
    const auto [at, added] = group_of.emplace(node.tag, groups.size());
    if (added) groups.emplace_back();
    groups[at->second].push_back(&node);
  }
  std::string out = "{";
  for (const auto& group : groups) {
    if (out.size() > 1) out += ',';
    out += json_string(group.front()->tag);
    out += ':';
    out += merge(group, schema.property(group.front()->tag));
  }
  out += '}';
  return out;
}

}  // namespace

std::string node_to_json(const ArgumentNode& node, const SchemaView& schema) {
  if (node.children.empty()) return coerce_leaf(node.text, schema);
  if (!is_item_list(node, schema)) return members_to_json(node.children, schema);
  std::string out = "[";
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    append_element(out, node_to_json(node.children[i], schema.item(i)));
  }
  out += ']';
  return out;
}

ArgumentBuilder::ArgumentBuilder(SchemaView schema) {
  frames_.emplace_back();
  top().mode = Mode::object;
  top().schema = std::move(schema);
}

std::size_t ArgumentBuilder::depth() const {
  return frames_.size() + (frames_.back().mode == Mode::tree ? frames_.back().path.size() : 0);
}

void ArgumentBuilder::begin_member(Frame& object, const std::string& name, std::string& out) {
  out += object.count++ == 0 ? "" : ",";
  out += json_string(name);
  out += ':';
  object.written.insert(name);
}

void ArgumentBuilder::end_open_array(Frame& object, std::string& out) {
  if (!object.has_open_array) return;
  out += ']';
  object.has_open_array = false;
}

void ArgumentBuilder::extend_array(Frame& object, const std::string& name, const std::vector<std::string>& elements,
                                   std::string& out) {
  if (!object.has_open_array) {
    begin_member(object, name, out);
    out += '[';
    object.has_open_array = true;
    object.open_array = name;
    object.open_count = 0;
  }
  for (const std::string& element : elements) {
    out += object.open_count++ == 0 ? "" : ",";
    out += element;
  }
}

void ArgumentBuilder::flush_waiting(Frame& object, std::string& out) {
  if (object.waiting.empty()) return;
  // Without the braces, as members of the object that is being written.
  std::vector<ArgumentNode> nodes = std::move(object.waiting);
  object.waiting.clear();
  const std::string members = members_to_json(nodes, object.schema);
  out += object.count++ == 0 ? "" : ",";
  out += std::string_view(members).substr(1, members.size() - 2);
  for (const ArgumentNode& node : nodes) object.written.insert(node.tag);
}

// What stands before the value of the top frame.
void ArgumentBuilder::begin_value(std::string& out) {
  Frame& parent = owner();
  if (parent.mode == Mode::object) {
    begin_member(parent, top().tag, out);
  } else {
    out += parent.count++ == 0 ? "" : ",";
  }
}

void ArgumentBuilder::open_child(std::string_view tag, const SchemaView& schema) {
  Frame frame{};
  frame.mode = can_stream(schema) ? Mode::leaf : Mode::tree;
  frame.tag = std::string(tag);
  frame.schema = schema;
  if (frame.mode == Mode::tree) frame.path.push_back({frame.tag, {}, {}});
  frames_.push_back(std::move(frame));
}

void ArgumentBuilder::open_member(std::string_view tag, std::string& out) {
  const std::string name(tag);
  Frame& object = top();
  if (object.has_open_array && object.open_array == name) {
    open_child(tag, object.schema.property(tag));
    top().continues = true;
    return;
  }
  end_open_array(object, out);
  // Under a typed object a repetition that is not next to the first is dropped, so that members can be written early.
  if (object.schema.typed() && !object.waiting.empty() && object.waiting.front().tag != name) {
    flush_waiting(object, out);
  }
  const bool repeated = object.written.contains(name);
  open_child(tag, repeated ? SchemaView() : object.schema.property(tag));
  top().repeated = repeated;
}

bool ArgumentBuilder::become_container(std::string& out) {
  Frame& leaf = top();
  if (!is_blank(leaf.text)) return false;
  const bool array = leaf.schema.allows(kind_array);
  if (!array && !leaf.schema.allows(kind_object)) return false;
  leaf.text.clear();
  if (array && leaf.continues) {
    leaf.count = owner().open_count;
  } else {
    begin_value(out);
    out += array ? '[' : '{';
  }
  leaf.mode = array ? Mode::array : Mode::object;
  return true;
}

// Whether `tag` names another member of the object that the top frame is a member of: the closing tag between them
// was forgotten.
bool ArgumentBuilder::is_sibling(std::string_view tag) {
  return frames_.size() > 1 && owner().mode == Mode::object && owner().schema.declares(tag) && top().tag != tag;
}

void ArgumentBuilder::open(std::string_view tag, std::string_view raw, std::string& out) {
  if (depth() >= max_depth) return text(raw, out);
  switch (top().mode) {
    case Mode::object: return open_member(tag, out);
    case Mode::array: return open_child(tag, top().schema.item(top().count));
    case Mode::leaf:
      if (become_container(out)) return open(tag, raw, out);
      [[fallthrough]];
    case Mode::string:
      if (!is_sibling(tag)) return text(raw, out);
      close_top(out);
      return open(tag, raw, out);
    case Mode::tree: {
      const ArgumentNode& node = top().path.back();
      const bool has_text = node.children.empty() && !is_blank(node.text);
      if (has_text && top().path.size() == 1 && is_sibling(tag)) {
        close_top(out);
        return open(tag, raw, out);
      }
      top().path.push_back({std::string(tag), {}, {}});
      return;
    }
  }
}

void ArgumentBuilder::text(std::string_view piece, std::string& out) {
  Frame& frame = top();
  switch (frame.mode) {
    case Mode::object:
    case Mode::array: return;  // between members there is only layout
    case Mode::tree: frame.path.back().text += piece; return;
    case Mode::string: return append_json_escaped(out, piece);
    case Mode::leaf:
      frame.text += piece;
      if (frame.continues || !is_surely_string(frame.text, frame.schema)) return;
      begin_value(out);
      out += '"';
      append_json_escaped(out, frame.text);
      frame.text.clear();
      frame.mode = Mode::string;
      return;
  }
}

void ArgumentBuilder::close_leaf(std::string& out) {
  Frame& leaf = top();
  const bool null =
      leaf.schema.allows(kind_null) && !leaf.continues && (trim_spaces(leaf.text) == "null" || is_blank(leaf.text));
  if (leaf.schema.only(kind_array | kind_null) && !null && owner().mode == Mode::object) {
    extend_array(owner(), leaf.tag, coerce_elements(leaf.text, leaf.schema), out);
  } else {
    begin_value(out);
    out += coerce_leaf(leaf.text, leaf.schema);
  }
}

void ArgumentBuilder::close_tree(std::string& out) {
  Frame& tree = top();
  while (tree.path.size() > 1) {
    ArgumentNode node = std::move(tree.path.back());
    tree.path.pop_back();
    tree.path.back().children.push_back(std::move(node));
  }
  if (tree.repeated) return;
  if (owner().mode == Mode::object) {
    owner().waiting.push_back(std::move(tree.path.front()));
    return;
  }
  begin_value(out);
  out += node_to_json(tree.path.front(), tree.schema);
}

void ArgumentBuilder::finish_object(Frame& object, std::string& out) {
  end_open_array(object, out);
  flush_waiting(object, out);
  out += '}';
}

void ArgumentBuilder::close_top(std::string& out) {
  switch (top().mode) {
    case Mode::string: out += '"'; break;
    case Mode::leaf: close_leaf(out); break;
    case Mode::tree: close_tree(out); break;
    case Mode::object: finish_object(top(), out); break;
    case Mode::array: {
      Frame& parent = owner();
      if (parent.mode == Mode::object) {
        parent.has_open_array = true;
        parent.open_array = top().tag;
        parent.open_count = top().count;
      } else {
        out += ']';
      }
      break;
    }
  }
  frames_.pop_back();
}

void ArgumentBuilder::close(std::string_view tag, std::string_view raw, std::string& out) {
  if (top().mode == Mode::tree) {
    auto& path = top().path;
    const auto same =
        std::find_if(path.rbegin(), path.rend(), [&](const ArgumentNode& node) { return node.tag == tag; });
    if (same != path.rend()) {
      auto keep = static_cast<std::size_t>(path.rend() - same) - 1;
      if (keep == 0) return close_top(out);
      while (path.size() > keep) {
        ArgumentNode node = std::move(path.back());
        path.pop_back();
        path.back().children.push_back(std::move(node));
      }
      return;
    }
  }
  for (std::size_t i = frames_.size(); i-- > 1;) {
    if (frames_[i].tag != tag) continue;
    while (frames_.size() > i) close_top(out);
    return;
  }
  // A closing tag of nothing that is open belongs to a text it stands in, else it is dropped.
  const Frame& frame = top();
  const bool in_text = frame.mode == Mode::string || (frame.mode == Mode::leaf && !is_blank(frame.text)) ||
                       (frame.mode == Mode::tree && !is_blank(frame.path.back().text));
  if (in_text) text(raw, out);
}

void ArgumentBuilder::finish(std::string& out) {
  while (frames_.size() > 1) close_top(out);
  finish_object(top(), out);
}

}  // namespace m3::chat
