#pragma once

// Requests that no handler should see, and whose fault an error is.

#include <exception>
#include <string>

// Throws for JSON so deep that copying it would end the stack, and for messages, tools and other fields that some handlers pass
// over in silence: std::invalid_argument, or what hwkv_request_is_fault() knows.
void hwkv_request_check(const std::string & body);

// JSON that is none, or holds other types, numbers and words than asked for, is the caller's
bool hwkv_request_is_fault(const std::exception & e);
