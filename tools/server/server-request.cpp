#include "server-request.h"

#include "json.h"

#include <stdexcept>

static const int DEPTH_MAX = 512; // chats with tools and schemas have about 20

void hwkv_request_check(const std::string & body) {
    const size_t first = body.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || (body[first] != '{' && body[first] != '[')) {
        return; // no JSON, or an upload
    }

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

bool hwkv_request_is_fault(const std::exception & e) {
    return dynamic_cast<const common_json_error *>(&e) || dynamic_cast<const std::out_of_range *>(&e);
}
