"""Bodies of requests to the OpenAI API, checked by pydantic.

What changes a result and is not supported is refused by name. Other unknown keys are ignored, as clients send many.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from farflung.errors import InputError
from farflung.messages.serving import MOST_LOGPROBS
from farflung.serving.scheduler import Draws

__all__ = ["ChatMessage", "ChatRequest", "CompletionRequest", "Prompt", "StreamOptions", "TextRequest"]

#: Keys of the API that change a result, and the value with which they don't.
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
}
_MOST_CHOICES = 64
#: Characters of a stop, and stops: each token that is drawn is compared with the beginnings of all of them.
_MOST_STOP, _MOST_STOPS = 500, 16
#: Seeds are smaller: messages between machines carry no larger ones.
_SEEDS = 2**53

Prompt = str | list[int]
_Stop = Annotated[str, Field(min_length=1, max_length=_MOST_STOP)]


def _several(value: object) -> object:
    return [] if value is None else [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    """``stream_options``."""

    include_usage: bool = False


class TextRequest(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    temperature: Annotated[float, Field(ge=0.0, le=100.0, strict=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, strict=False)] = 1.0
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] = 1
    seed: Annotated[int, Field(ge=0, lt=_SEEDS)] | None = None
    stop: Annotated[list[_Stop], BeforeValidator(_several), Field(max_length=_MOST_STOPS)] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    #: From here on: not of OpenAI, but of most servers.
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def reports_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def shown(self) -> int | None:
        """How many likely tokens are reported beside each token (``None``: no probabilities are)."""
        raise NotImplementedError

    def draws(self, choice: int) -> Draws:
        """How the tokens of one of the ``n`` choices are drawn. Without a seed, each request draws others."""
        seed = secrets.randbits(48) if self.seed is None else self.seed
        return Draws(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=(seed + choice) % _SEEDS,
            logprobs=self.shown or 0,
        )

    def check(self) -> None:
        """Refuse what is not supported.

        Raises:
            InputError: the request has such a key.
        """
        for name, value in (self.model_extra or {}).items():
            if name in _REFUSED and value is not None and value not in _REFUSED[name]:
                raise InputError(f"{name} = {value!r:.60} is not supported by this server: leave {name} out")


class CompletionRequest(TextRequest):
    """The body of ``/v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts: each a text, or its tokens."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return list(given)

    @property
    def shown(self) -> int | None:
        """See ``TextRequest``."""
        return self.logprobs


class ContentPart(BaseModel):
    """A part of a message. Only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart] | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The message as a chat template takes it."""
        parts = self.content if isinstance(self.content, list) else None
        text = self.content if parts is None else "".join(part.text for part in parts)
        return {**(self.model_extra or {}), "role": self.role, "content": text or ""}


class ChatRequest(TextRequest):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def most(self) -> int | None:
        """Tokens of the answer at most (``None``: as many as fit)."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def shown(self) -> int | None:
        """See ``TextRequest``."""
        return (self.top_logprobs or 0) if self.logprobs else None
