// Writes the project's JSON files: one key a line, arrays on one line. Not thread-safe.
#pragma once

#include <charconv>
#include <concepts>
#include <map>
#include <string>
#include <string_view>

namespace stalloc {

class JsonWriter {
 public:
  // Begins an object, as the document or as the value of the last key.
  void begin_object() {
    text_ += '{';
    ++depth_;
    empty_ = true;
  }
  void end_object() {
    --depth_;
    if (!empty_) new_line();
    text_ += '}';
    empty_ = false;
  }
  void key(std::string_view name) {
    if (!empty_) text_ += ',';
    empty_ = false;
    new_line();
    string(name);
    text_ += ": ";
  }

  void value(std::integral auto number) {
    char digits[24];
    const char* end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
    text_ += std::string_view(digits, static_cast<std::size_t>(end - digits));
  }
  void value(bool flag) { text_ += flag ? "true" : "false"; }
  void value(std::string_view text) { string(text); }
  void value(const std::string& text) { string(text); }
  void value(const std::map<std::string, std::string>& texts) {
    begin_object();
    for (const auto& [name, text] : texts) {
      key(name);
      string(text);
    }
    end_object();
  }
  void null() { text_ += "null"; }

  template <typename T>
  void entry(std::string_view name, const T& content) {
    key(name);
    value(content);
  }
  // Writes an array: write(row) writes the element of each row.
  template <typename Rows, typename Write>
  void column(std::string_view name, const Rows& rows, Write write) {
    key(name);
    array(rows, write);
  }
  template <typename Rows, typename Write>
  void array(const Rows& rows, Write write) {
    text_ += '[';
    bool first = true;
    for (const auto& row : rows) {
      if (!first) text_ += ',';
      first = false;
      write(row);
    }
    text_ += ']';
  }

  // The document, ended by a newline. The writer is spent.
  std::string finish() {
    text_ += '\n';
    return std::move(text_);
  }

 private:
  void new_line() { text_.append(1, '\n').append(2 * static_cast<std::size_t>(depth_), ' '); }

  void string(std::string_view text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    text_ += '"';
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20) {
        text_ += "\\u00";
        text_ += kHex[byte >> 4];
        text_ += kHex[byte & 0xf];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  int depth_ = 0;
  bool empty_ = true;  // nothing in the innermost object yet
};

}  // namespace stalloc
