// The conversation: sends it, reads the answer as it comes, keeps it in the browser.

import { request } from "./api.js";
import { byId } from "./dom.js";
import { count, plural } from "./format.js";
import { AnswerView, userMessage } from "./message.js";
import { load, save } from "./store.js";
import { readEvents } from "./stream.js";

const isMessage = m => m && ["user", "assistant"].includes(m.role) && typeof m.content === "string";

export class Chat {
    // settings: () => { system, temperature, maxTokens }; onTrouble gets errors that concern the connection
    constructor({ settings, onTrouble, onChange }) {
        Object.assign(this, { settings, onTrouble, onChange });
        this.contextSize = 0;
        this.abort    = null;
        this.turns    = byId("turns");
        this.scroller = byId("messages");
        this.pinned   = true; // at the end of the conversation, and stays there as it grows or the window changes
        new ResizeObserver(() => this.follow()).observe(this.scroller);
        this.scroller.addEventListener("scroll", () => {
            this.pinned = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 60;
        }, { passive: true });
        const stored = load("chat", []);
        this.messages = Array.isArray(stored) ? stored.filter(isMessage) : [];
        this.draw();
    }

    get busy() { return this.abort !== null; }

    draw() {
        this.turns.replaceChildren(...this.messages.map((message, i) => message.role === "user"
            ? userMessage(message, () => this.edit(i))
            : new AnswerView(message, () => this.again(i)).node));
        byId("welcome").hidden = this.messages.length > 0;
        this.showContext(this.messages.findLast(message => message.timings)?.timings);
        this.pinned = true;
        this.follow();
        this.onChange(this);
    }

    follow() {
        if (this.pinned && this.messages.length) {
            this.scroller.scrollTop = this.scroller.scrollHeight;
        }
    }

    clear() {
        this.stop();
        this.messages = [];
        save("chat", []);
        this.draw();
    }

    stop() { this.abort?.abort(); }

    // takes a question back into the message box, and all that came after it off the conversation
    edit(i) {
        this.stop();
        const { content } = this.messages[i];
        this.messages.length = i;
        save("chat", this.messages);
        this.draw();
        const box = byId("prompt");
        box.value = content;
        box.dispatchEvent(new Event("input"));
        box.focus();
    }

    again(i) {
        if (!this.busy) {
            this.messages.length = i;
            this.answer();
        }
    }

    send(text) {
        this.messages.push({ role: "user", content: text });
        this.answer();
    }

    request() {
        const { system, temperature, maxTokens } = this.settings();
        // answers that failed before their first word are no part of the conversation
        const said = this.messages.filter(message => message.role === "user" || message.content)
            .map(({ role, content }) => ({ role, content }));
        return {
            messages: system ? [{ role: "system", content: system }, ...said] : said,
            stream: true, temperature, timings_per_token: true, return_progress: true,
            ...(maxTokens ? { max_tokens: maxTokens } : {}),
        };
    }

    async answer() {
        const body = this.request(), abort = new AbortController();
        const message = { role: "assistant", content: "", live: true };
        this.messages.push(message);
        this.abort = abort;
        this.draw();
        const view = new AnswerView(message, () => this.again(this.messages.indexOf(message)));
        this.turns.lastChild.replaceWith(view.node);
        this.follow();
        try {
            const response = await request("v1/chat/completions", { body, signal: abort.signal });
            for await (const event of readEvents(response.body, abort.signal)) {
                this.take(message, event);
                this.schedule(view);
            }
        } catch (error) {
            if (abort.signal.aborted) {
                message.note = "Stopped.";
            } else {
                message.note = this.explain(error);
                message.failed = true;
                this.onTrouble(error);
            }
        }
        this.finish(message, view, abort);
    }

    take(message, event) {
        const choice = event.choices?.[0];
        message.content += choice?.delta?.content ?? "";
        if (choice?.delta?.reasoning_content) {
            message.reasoning = (message.reasoning ?? "") + choice.delta.reasoning_content;
        }
        message.progress = event.prompt_progress ?? message.progress;
        message.timings  = event.timings ?? message.timings;
        if (choice?.finish_reason === "length") {
            message.note = this.used(message.timings) >= this.contextSize - 1 && this.contextSize
                ? `The context of ${plural(this.contextSize, "token")} is full. Start a new chat to go on.`
                : "Stopped at the limit of tokens for one answer (see Settings).";
        }
    }

    // at most once a frame, however fast the tokens come
    schedule(view) {
        if (!this.frame) {
            this.frame = requestAnimationFrame(() => {
                this.frame = 0;
                view.update();
                this.showContext(view.message.timings);
                this.follow();
            });
        }
    }

    finish(message, view, abort) {
        message.live = false;
        delete message.progress;
        if (this.abort === abort) { // else the next answer has begun
            this.abort = null;
        }
        view.update();
        this.follow();
        // one that was taken back meanwhile is not kept
        if (this.messages.includes(message)) {
            this.showContext(message.timings);
            byId("announce").textContent = message.note || `Answer finished: ${plural(message.timings?.predicted_n ?? 0, "token")}.`;
        }
        save("chat", this.messages);
        this.onChange(this);
    }

    explain(error) {
        if (error.details?.type === "exceed_context_size_error") {
            const { n_prompt_tokens: tokens, n_ctx: size } = error.details;
            return `This conversation is too long: ${plural(tokens, "token")}, and the context has ${count(size)}. `
                + "Start a new chat, or edit an earlier message.";
        }
        const reasons = { 0: `No full answer: ${error.message}.`, 401: "The server did not accept the API key.", 503: "The model is still loading." };
        return reasons[error.status] ?? `The server refused: ${error.message}`;
    }

    used(timings) {
        return timings ? (timings.cache_n ?? 0) + (timings.prompt_n ?? 0) + (timings.predicted_n ?? 0) : 0;
    }

    showContext(timings) {
        const used = this.used(timings);
        byId("context").hidden = !used || !this.contextSize;
        byId("context-text").textContent = `Context: ${count(used)} of ${count(this.contextSize)} tokens`;
        byId("context-bar").style.width = `${Math.min(100, 100 * used / (this.contextSize || 1))}%`;
    }
}
