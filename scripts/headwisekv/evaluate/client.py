"""An OpenAI-compatible endpoint, and what llama-server offers beside that: templates, tokens, properties."""

import asyncio
import os
from urllib.parse import urlsplit

import openai

from ..core import Failure
from .jobs import ExampleError

TRIES = 6
TIMEOUT_TRIES = 2  # a request that takes too long once mostly does so again
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def read_key(name):
    """The key in that environment variable. Servers of one's own mostly need none."""
    if name is None:
        return "none"
    if not os.environ.get(name):
        raise Failure(f"the environment variable {name} is not set, expected it to hold the API key")
    return os.environ[name]


def describe(error):
    text = getattr(error, "message", None) or str(error)
    body = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        text = body["message"]
    return " ".join(text.split())[:300]


class Endpoint:
    BACKOFF = 1.0  # seconds before the second try, doubled for every further one

    def __init__(self, base_url, model=None, key_env=None, timeout=600, tokenize_url=None):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise Failure(f"base URL is '{base_url}', expected one such as http://127.0.0.1:8080/v1")
        url = base_url.rstrip("/")
        self.url = url if parts.path.strip("/") else url + "/v1"
        self.root = (tokenize_url or self.url.removesuffix("/v1")).rstrip("/")
        self.model = model
        self.props = {}
        self.client = openai.AsyncOpenAI(base_url=self.url, api_key=read_key(key_env), timeout=timeout, max_retries=0)
        # another server must not see the key
        self.counter = openai.AsyncOpenAI(base_url=self.root, api_key="none", timeout=timeout, max_retries=0) if tokenize_url else self.client

    async def __aenter__(self):
        try:
            models = await self.call(lambda: self.client.models.list(), tries=3)
            self.model = self.model or (models.data[0].id if models.data else None)
        except ExampleError as error:
            if not self.model:
                raise Failure(f"{self.url} does not list its models ({error}); give --model") from None
        if not self.model:
            raise Failure(f"{self.url} lists no model; give --model")
        if self.counter is self.client:
            await self.read_props()
        return self

    async def __aexit__(self, *_):
        await self.counter.close()
        await self.client.close()

    async def read_props(self):
        """Only llama-server has them."""
        try:
            found = await self.client.get(self.root + "/props", cast_to=object)
        except openai.OpenAIError:
            return
        if isinstance(found, dict):
            self.props = found

    async def call(self, request, tries=TRIES, fatal=()):
        """Awaits request() and again, with growing pauses, where that may help."""
        timeouts = 0
        for attempt in range(1, tries + 1):
            try:
                return await request()
            except openai.APITimeoutError:
                timeouts += 1
                if timeouts >= TIMEOUT_TRIES or attempt == tries:
                    raise ExampleError(f"no answer within --timeout, tried {timeouts} times") from None
            except openai.APIConnectionError as error:
                if attempt == tries:
                    cause = error.__cause__ or error
                    raise Failure(f"cannot reach {self.url}: {describe(cause) or type(cause).__name__}") from None
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise Failure(f"{self.url} refused the key ({error.status_code}): {describe(error)}; see --api-key-env") from None
            except openai.APIStatusError as error:
                if error.status_code in fatal:
                    raise Failure(f"{error.request.url}: {error.status_code}: {describe(error)}") from None
                retry = error.status_code in (408, 409, 429) or error.status_code >= 500 and error.status_code != 501
                if not retry or attempt == tries:
                    raise ExampleError(f"{error.request.url.path}: {error.status_code}: {describe(error)}") from None
            await asyncio.sleep(min(self.BACKOFF * 2 ** (attempt - 1), 30))

    #
    # any endpoint
    #

    def extra(self):
        """Options that only llama-server is known to take."""
        return NO_THINKING if self.props else None

    async def complete(self, prompt, max_tokens, seed):
        answer = await self.call(lambda: self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0, seed=seed), fatal=(404,))
        return answer.choices[0].text

    async def chat(self, messages, max_tokens, seed):
        answer = await self.call(lambda: self.client.chat.completions.create(
            model=self.model, messages=messages, max_tokens=max_tokens, temperature=0, seed=seed, extra_body=self.extra()), fatal=(404,))
        return answer.choices[0].message.content or ""

    #
    # llama-server
    #

    async def native(self, path, body):
        return await self.call(lambda: self.counter.post(self.root + path, cast_to=object, body=body))

    async def need(self, path, body, field):
        """A field of a native answer; without it there is no measuring of lengths."""
        try:
            return (await self.native(path, body))[field]
        except (ExampleError, KeyError, TypeError) as error:
            raise Failure(f"{self.root}{path} gave no {field} ({error}); llama-server has it, for others see --tokenize-url") from None

    async def tokens(self, text, special=False):
        return await self.need("/tokenize", {"content": text, "add_special": special}, "tokens")

    async def count(self, text):
        return len(await self.tokens(text))

    async def text_of(self, tokens):
        return await self.need("/detokenize", {"tokens": tokens}, "content")

    async def render(self, messages):
        """The prompt up to the place where the model answers."""
        return await self.need("/apply-template", {"messages": messages, **NO_THINKING}, "prompt")

    def n_ctx(self):
        """Context of one slot, or None where the server does not tell."""
        value = self.props.get("default_generation_settings", {}).get("n_ctx")
        return value if isinstance(value, int) and value > 0 else None

    def policy(self):
        """What tells the cache policy of this server from others, or None."""
        found = self.props.get("kv_policy")
        return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else None

    def describe(self):
        return {"url": self.url, "model": self.model, "n_ctx": self.n_ctx(), "build": self.props.get("build_info"),
                "kv_policy": self.props.get("kv_policy")}
