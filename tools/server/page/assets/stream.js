// Reads server-sent events of a chat completion.

import { ApiError } from "./api.js";

const GONE = "the server went away in the middle of the answer";

// Yields the JSON of each event. Ends at [DONE]; a stream that ends without it was cut off.
export async function* readEvents(body, signal) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) {
                throw new ApiError(0, GONE);
            }
            const lines = (rest + value).split("\n");
            rest = lines.pop();
            for (const line of lines) {
                const [, field, data] = /^(data|error): ?(.*?)\r?$/.exec(line) || [];
                if (data === "[DONE]") {
                    return;
                }
                if (field) {
                    yield parse(field, data);
                }
            }
        }
    } catch (error) {
        throw error instanceof ApiError || signal.aborted ? error : new ApiError(0, GONE);
    }
}

function parse(field, data) {
    const event = JSON.parse(data), error = field === "error" ? event : event.error;
    if (error) {
        throw new ApiError(error.code || 500, error.message || "the server failed", error);
    }
    return event;
}
