"""A scripted OpenAI-compatible endpoint with llama-server's native calls, for tests of scripts/eval."""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer



class Stub:
    """`answer(prompt)` is the text of a completion, `logprob(prompt)` the log-probability of every forced token.

    `faults` is a list of status codes that the next completions get.
    """

    def __init__(self, answer=lambda prompt: "", logprob=lambda prompt: -1.0, n_ctx=8192, key=None, delay=0.0, native=True, port=0):
        self.answer, self.n_ctx, self.key, self.delay, self.native = answer, n_ctx, key, delay, native
        self.logprob, self.port = logprob, port
        self.faults, self.prompts, self.bodies = [], [], []
        self.busy = self.most_busy = 0
        self.pieces, self.ids = [], {}
        self.lock = threading.Lock()

    def __enter__(self):
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # header and body in one packet: no waiting for an acknowledgement in between

            def do_GET(self):
                self.handle_one(None)

            def do_POST(self):
                self.handle_one(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def handle_one(self, body):
                code, answer = stub.respond(self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients are killed on purpose

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def tokens(self, text):
        with self.lock:
            result = []
            for piece in re.findall(r"\s?\w+|\s?[^\w\s]|\s", text):
                if piece not in self.ids:
                    self.ids[piece] = len(self.pieces)
                    self.pieces.append(piece)
                result.append(self.ids[piece])
            return result

    def text(self, tokens):
        return "".join(self.pieces[token] for token in tokens)

    def respond(self, path, body, authorization):
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": {"message": "invalid key"}}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "stub", "object": "model", "created": 0, "owned_by": "test"}]}
        if path in ("/v1/completions", "/v1/chat/completions", "/completion"):
            return self.generate(path, body)
        if path == "/health":
            return 200, {"status": "ok"}
        if self.native:
            if path == "/props":
                return 200, {"default_generation_settings": {"n_ctx": self.n_ctx}, "build_info": "stub"}
            if path == "/tokenize":
                return 200, {"tokens": self.tokens(body["content"])}
            if path == "/detokenize":
                return 200, {"content": self.text(body["tokens"])}
            if path == "/apply-template":
                return 200, {"prompt": self.render(body["messages"])}
        return 404, {"error": {"message": f"no {path} here"}}

    def render(self, messages):
        return "".join(f"<{message['role']}>{message['content']}\n" for message in messages) + "<assistant>"

    def generate(self, path, body):
        with self.lock:
            self.busy += 1
            self.most_busy = max(self.busy, self.most_busy)
            fault = self.faults.pop(0) if self.faults else None
        try:
            time.sleep(self.delay)
            if fault:
                return fault, {"error": {"message": f"fault {fault}"}}
            if path == "/completion" and "grammar" not in body:
                return 200, {"content": "", "timings": {"prompt_per_second": 1000.0, "predicted_per_second": 100.0}}
            if path == "/completion":
                return self.force(body)
            prompt = body["prompt"] if path == "/v1/completions" else self.render(body["messages"])
            text = self.answer(prompt)
            with self.lock:
                self.prompts.append(prompt)
                self.bodies.append(body)
        finally:
            with self.lock:
                self.busy -= 1
        base = {"id": "x", "created": 0, "model": "stub"}
        if path == "/v1/completions":
            return 200, {**base, "object": "text_completion", "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, "text": text}]}
        return 200, {**base, "object": "chat.completion",
                     "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}

    def force(self, body):
        """The tokens that the grammar asks for."""
        value = self.logprob(self.text(body["prompt"]))
        forced = [int(token) for token in re.findall(r"<\[(\d+)\]>", body["grammar"])]
        self.bodies.append(body)
        return 200, {"content": self.text(forced), "completion_probabilities": [
            {"id": token, "logprob": value, "top_logprobs": [{"id": token + (value <= -1), "logprob": max(value, -0.5)}]} for token in forced]}
