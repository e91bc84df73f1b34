#pragma once

// What llama-server tells about a KV policy.

#include "llama-hwkv.h"

#include "json.h"

// for /props: file hash, operating point, groups, bytes; null without window groups
common_json server_kv_policy_props(const llama_context * ctx);
