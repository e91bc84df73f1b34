#include "server-request.h"

#include "chat.h"
#include "json.h"

#include <stdexcept>

static const int DEPTH_MAX = 512; // chats with tools and schemas have about 20

static void check_depth(const std::string & body, size_t first) {
    int  depth     = 0;
    bool in_string = false;
    for (size_t i = first; i < body.size(); ++i) {
        const char c = body[i];
        if (in_string) {
            if (c == '\\') {
                ++i;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX) {
                throw std::invalid_argument("found JSON nested deeper than " + std::to_string(DEPTH_MAX) + " levels");
            }
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
}

[[noreturn]] static void refuse(const char * field, const common_json & found, const char * expected) {
    std::string text = found.dump();
    if (text.size() > 100) {
        size_t n = 100;
        while (((unsigned char) text[n] & 0xC0) == 0x80) { // in the middle of a character
            --n;
        }
        text = text.substr(0, n) + "...";
    }
    throw std::invalid_argument(std::string("'") + field + "': found " + text + ", expected " + expected);
}

static bool is_text(const common_json & object, const char * key) {
    return object.contains(key) && object.at(key).is_string();
}

static bool is_object_or_none(const common_json & object, const char * key) {
    return !object.contains(key) || object.at(key).is_null() || object.at(key).is_object();
}

static void check_messages(const common_json & messages) {
    if (!messages.is_array()) {
        refuse("messages", messages, "an array");
    }
    for (const auto & message : messages) {
        if (!message.is_object()) {
            refuse("messages", message, "objects in the array");
        }
        if (!message.contains("content") || !message.at("content").is_array()) {
            continue;
        }
        for (const auto & part : message.at("content")) {
            if (!part.is_object() || !is_text(part, "type")) {
                refuse("messages", part, "parts of a content with a type");
            }
        }
    }
}

// A tool of chat completions has a function in it, one of the other two APIs is it. Both of them know kinds without a name too,
// such as a web search.
static void check_tool(const common_json & tool) {
    if (!tool.is_object() || (tool.contains("type") && !is_text(tool, "type"))) {
        refuse("tools", tool, "objects with a type or a name in the array");
    }
    const std::string type = tool.contains("type") ? tool.at("type").get<std::string>() : "custom";
    const bool inside = tool.contains("function");
    if (inside && !tool.at("function").is_object()) {
        refuse("tools", tool, "an object as function");
    }
    const common_json & about = inside ? tool.at("function") : tool;
    if (!is_text(about, "name") && (about.contains("name") || inside || type == "function" || type == "custom")) {
        refuse("tools", tool, "a name");
    }
    if (!is_object_or_none(about, "parameters") || !is_object_or_none(about, "input_schema")) {
        refuse("tools", tool, "an object as schema of the parameters");
    }
}

static void check_tools(const common_json & tools) {
    if (tools.is_null()) {
        return;
    }
    if (!tools.is_array()) {
        refuse("tools", tools, "an array");
    }
    for (const auto & tool : tools) {
        check_tool(tool);
    }
}

static void check_reasoning_format(const common_json & format) {
    if (!format.is_string()) {
        refuse("reasoning_format", format, "its name");
    }
    common_reasoning_format_from_name(format.get<std::string>());
}

// of a rerank, which makes it the size of a list
static void check_top_n(const common_json & top_n) {
    if (!top_n.is_null() && (!top_n.is_number_integer() || top_n.get<double>() < 0)) {
        refuse("top_n", top_n, "a whole number of 0 or more");
    }
}

void hwkv_request_check(const std::string & body) {
    const size_t first = body.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || (body[first] != '{' && body[first] != '[')) {
        return; // no JSON, or an upload
    }
    check_depth(body, first);

    static const struct {
        const char * name;
        void      (* check)(const common_json & value);
    } fields[] = {
        { "messages",         check_messages         },
        { "tools",            check_tools            },
        { "reasoning_format", check_reasoning_format },
        { "top_n",            check_top_n            },
    };

    // what has none of them, such as a long prompt, is not parsed twice
    bool any = false;
    for (const auto & field : fields) {
        any = any || body.find(std::string("\"") + field.name + "\"") != std::string::npos;
    }
    const common_json json = any ? common_json::parse_no_throw(body) : common_json();
    if (!json.is_object()) {
        return; // the handler says what is wrong with it
    }
    for (const auto & field : fields) {
        if (json.contains(field.name)) {
            field.check(json.at(field.name));
        }
    }
}

// what handlers say of a request in exceptions that could be anybody's
static const char * const FAULTS[] = {
    "'messages' is required",
    "Failed to parse messages: ",
    "Failed to parse tools: ",
    "Unknown reasoning format: ",
    "\"prompt\" ",
    "Multimodal data provided, but model does not support",
    "tools param requires --jinja",
    "tool_choice param requires --jinja",
};

bool hwkv_request_is_fault(const std::exception & e) {
    if (dynamic_cast<const common_json_error *>(&e) || dynamic_cast<const std::out_of_range *>(&e)) {
        return true;
    }
    const std::string text = e.what();
    for (const char * fault : FAULTS) {
        if (text.rfind(fault, 0) == 0) {
            return true;
        }
    }
    return false;
}
