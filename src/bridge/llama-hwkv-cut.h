#pragma once

// The hook of llama-hwkv-trace.h in llama.cpp's graph building.

class llm_graph_result;
struct ggml_cgraph;

// the finished graph, or the part of it that the tracer active in this thread asks for; null if it cannot be cut
ggml_cgraph * llama_hwkv_cut(llm_graph_result & res);
