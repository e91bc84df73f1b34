#pragma once

// Requests that no handler should see, and whose fault an error is.

#include <exception>
#include <string>

// throws std::invalid_argument for JSON so deep that copying it would end the stack
void hwkv_request_check(const std::string & body);

// JSON that is none, or holds other types and numbers than asked for, is the caller's
bool hwkv_request_is_fault(const std::exception & e);
