// What --help prints; README.md shows the same.

#include "kv-policy.h"

#include <string.h>

static const char HELP[] =
    "usage: llama-kv-policy COMMAND ...\n"
    "\n"
    "Policies give every KV head of a model its own window.\n"
    "\n"
    "commands\n"
    "  show FILE               head map, operating points and memory of a policy\n"
    "  check FILE -m MODEL     does it fit this model, what will it take and save\n"
    "  make METHOD -o FILE     make a policy without calibrating one\n"
    "  diff FILE FILE          which heads have other windows\n"
    "\n"
    "  COMMAND --help          the options of a command\n"
    "  --version               the version of this program\n"
    "\n"
    "exit code: 0 ok, 1 failed, 2 wrong usage, 3 no such operating point\n"
    "           (diff: 0 same, 1 different, 2 trouble)\n";

static const char HELP_SHOW[] =
    "usage: llama-kv-policy show FILE [options]\n"
    "\n"
    "Shows a policy: model, operating points, the windows of one point as a map with\n"
    "one row per layer and one symbol per KV head, and the memory of its groups at the\n"
    "policy's own context with default settings.\n"
    "\n"
    "  --point NAME|N          operating point (default: the selected one)\n"
    "  --color WHEN            auto, always or never (default: auto, a terminal without NO_COLOR)\n"
    "  --all                   every layer; else over 64 layers equal neighbours are folded\n";

static const char HELP_CHECK[] =
    "usage: llama-kv-policy check FILE [-m MODEL] [options]\n"
    "\n"
    "Checks a policy file and, with -m, that it fits the model; then shows cells and bytes\n"
    "of every group as the runtime will allocate them, and what llama.cpp's own cache takes\n"
    "for the same layers. Reads only the model's metadata.\n"
    "\n"
    "  -m, --model FILE        GGUF model; without it only the policy's own geometry is used\n"
    "  --point NAME|N          operating point (default: the selected one)\n"
    "  -c, --ctx-size N        context (default: the policy's)\n"
    "  -np, --parallel N       sequences (default: 1)\n"
    "  --kv-unified            one stream for all sequences (default)\n"
    "  --no-kv-unified         one stream per sequence\n"
    "  -fa, --flash-attn on|off (default: on)\n"
    "  -ctk, --cache-type-k T  (default: the policy's)\n"
    "  -ctv, --cache-type-v T  (default: the policy's)\n"
    "  --pad N                 cells of a group are a multiple of N (default: 64, as on a CPU; 256 when a GPU holds some)\n"
    "  --rollback N            positions per sequence that can be taken back (default: 64)\n"
    "  --strict                other tensor types are an error, not a warning\n"
    "  --json                  the result as JSON\n"
    "  -v, --verbose           show llama.cpp's log\n";

static const char HELP_MAKE[] =
    "usage: llama-kv-policy make METHOD -o FILE [options]\n"
    "\n"
    "methods\n"
    "  uniform --window W            every head the same window\n"
    "  streaming --window W          the same with sinks, as StreamingLLM has it\n"
    "  layers --windows W1,W2,...    one window or \"full\" per full-attention layer\n"
    "  threshold --scores FILE --tau T[,T...]\n"
    "                                per head the shortest window with a score of at least T\n"
    "  duo --scores FILE --window W --ratio R\n"
    "                                the share R of heads with the lowest score at W is full,\n"
    "                                the others get W, as DuoAttention has it\n"
    "\n"
    "  -o, --output FILE       the policy to write; - is stdout\n"
    "  -m, --model FILE        GGUF model; optional with --scores\n"
    "  -c, --ctx-size N        context the policy is for; with --scores that of the scores\n"
    "  --sinks S               first positions that stay (default: 0, streaming: 4)\n"
    "  --name NAME             name of the operating point; several T: NAME-T\n"
    "  -ctk, --cache-type-k T  (default: f16)\n"
    "  -ctv, --cache-type-v T  (default: f16)\n"
    "  --scores FILE           a policy whose operating point has scores\n"
    "  --point NAME|N          the point of --scores (default: the selected one)\n"
    "  -v, --verbose           show llama.cpp's log\n";

static const char HELP_DIFF[] =
    "usage: llama-kv-policy diff FILE FILE [options]\n"
    "\n"
    "Lists the heads whose windows differ. Exit code: 0 same, 1 different, 2 trouble.\n"
    "\n"
    "  --point-a NAME|N        operating point of the first (default: the selected one)\n"
    "  --point-b NAME|N        operating point of the second (default: the selected one)\n";

const char * help_text(const char * command) {
    const struct { const char * name, * text; } texts[] = {
        { "", HELP }, { "show", HELP_SHOW }, { "check", HELP_CHECK }, { "make", HELP_MAKE }, { "diff", HELP_DIFF },
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strcmp(command, texts[i].name) == 0) {
            return texts[i].text;
        }
    }
    return NULL;
}
