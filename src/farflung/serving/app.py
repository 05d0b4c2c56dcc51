"""The HTTP API: ``/v1/models``, ``/v1/completions``, ``/v1/chat/completions`` and ``/health``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from farflung.clock import wall_time
from farflung.errors import ConnectionLost, InputError
from farflung.ids import new_id
from farflung.serving.access import Refused, check_access
from farflung.serving.answers import Answer, error_body
from farflung.serving.generation import Generation, Piece
from farflung.serving.openai import ChatRequest, CompletionRequest, TextRequest
from farflung.serving.scheduler import TokenSequence
from farflung.serving.service import Service
from farflung.serving.tokenizers import ServedTokenizer
from farflung.transports.http_patience import REQUEST_SECONDS

__all__ = ["ServedApi", "make_app"]

#: Bytes of a request's body: for each token of the context, and besides.
_TOKEN_BYTES, _OTHER_BYTES = 64, 1 << 20
#: Answers to one request: its prompts, times ``n``.
_MOST_ANSWERS = 128

Body = TypeVar("Body", bound=TextRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """What the API answers from.

    ``context``: tokens of a request. ``key``: what clients send (empty: nothing).
    """

    model: str
    context: int
    tokenizer: ServedTokenizer
    service: Service
    key: str = ""


def make_app(api: ServedApi) -> Starlette:
    """The API as an ASGI application."""
    routes = _Routes(api)
    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.one_model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chats, methods=["POST"]),
        ],
        exception_handlers={Refused: _refusal, HTTPException: _not_served},
    )


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body, status_code=error.status)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path} is not served here: see /v1/models, /v1/completions and /v1/chat/completions"
    return JSONResponse(error_body(text), status_code=error.status_code)


class _Choices:
    """The continuations of one request. Their pieces come on other threads, and are read in the server's loop."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._open = count
        #: What has come, by choice.
        self.pieces: list[list[Piece]] = [[] for _ in range(count)]
        self.generations: list[Generation] = []

    def put(self, index: int, piece: Piece) -> None:
        """Add a piece (any thread)."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

    async def next(self) -> tuple[int, Piece] | None:
        """Return the next piece, with the number of its choice (``None``: all have ended)."""
        if self._open == 0:
            return None
        index, piece = await self._queue.get()
        self.pieces[index].append(piece)
        self._open = 0 if piece.error is not None else self._open - (piece.cause is not None)
        return index, piece


class _Routes:
    def __init__(self, api: ServedApi) -> None:
        self._api = api
        self._created = int(wall_time())
        self._encoding = asyncio.Lock()

    async def health(self, _: Request) -> Response:
        """Whether workers serve now."""
        ready = self._api.service.ready
        return JSONResponse({"status": "ready" if ready else "waiting for workers"}, status_code=200 if ready else 503)

    async def models(self, request: Request) -> Response:
        """The one model."""
        check_access(request, self._api.key)
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one_model(self, request: Request) -> Response:
        """The model, by name."""
        check_access(request, self._api.key)
        self._check_model(request.path_params["name"])
        return JSONResponse(self._described())

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        body = await self._read(request, CompletionRequest)
        prompts = body.prompts
        if not 0 < len(prompts) * body.n <= _MOST_ANSWERS:
            asked = f"{len(prompts)} prompts times n = {body.n}"
            raise Refused(400, error_body(f"{asked} are {len(prompts) * body.n} answers: ask for 1 to {_MOST_ANSWERS} at once"))
        tokens = [
            prompt if isinstance(prompt, list) else await self._encoded(self._api.tokenizer.encode, prompt) for prompt in prompts
        ]
        return await self._answer(request, body, tokens, body.max_tokens)

    async def chats(self, request: Request) -> Response:
        """Answer a chat."""
        body = await self._read(request, ChatRequest)
        tokens = await self._encoded(self._api.tokenizer.encode_chat, [message.plain for message in body.messages])
        return await self._answer(request, body, [tokens], body.most)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _described(self) -> dict[str, Any]:
        api = self._api
        return {
            "id": api.model, "object": "model", "created": self._created, "owned_by": "farflung", "max_model_len": api.context
        }  # fmt: skip

    def _check_model(self, name: str) -> None:
        if name != self._api.model:
            text = f"unknown model {name!r:.100}: this server has {self._api.model!r}"
            raise Refused(404, error_body(text, code="model_not_found"))

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        """The checked body of a request."""
        check_access(request, self._api.key)
        given = request.headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, error_body(f"the body has Content-Type {given!r:.60}: send an object with application/json"))
        raw, largest = bytearray(), _TOKEN_BYTES * self._api.context + _OTHER_BYTES
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                async for block in request.stream():
                    raw += block
                    if len(raw) > largest:
                        raise Refused(413, error_body(f"the body has more than {largest} bytes: send a shorter prompt"))
        except TimeoutError:
            text = f"the body did not come within {REQUEST_SECONDS:g} s: send it again over a faster connection"
            raise Refused(408, error_body(text)) from None
        try:
            body = kind.model_validate(json.loads(raw.decode("utf-8")))
            body.check()
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the body"
            raise Refused(400, error_body(f"{where}: {first['msg']}; see the documentation of the OpenAI API")) from None
        except InputError as error:
            raise Refused(400, error_body(str(error))) from None
        except (ValueError, RecursionError) as error:
            raise Refused(
                400, error_body(f"the body is not JSON: {error}; send an object with Content-Type: application/json")
            ) from None
        self._check_model(body.model)
        return body

    async def _encoded(self, encode: Callable[[Any], list[int]], given: object) -> list[int]:
        """What ``encode`` of the tokenizer gives, in a thread: other requests go on meanwhile."""
        try:
            async with self._encoding:  # a tokenizer need not be safe to use in two threads
                return await asyncio.to_thread(encode, given)
        except InputError as error:
            raise Refused(400, error_body(str(error))) from None

    def _room(self, tokens: Sequence[int], most: int | None) -> int:
        """How many tokens may follow ``tokens``."""
        api, context = self._api, self._api.context
        if not tokens:
            raise Refused(400, error_body("the prompt is empty: send at least one token"))
        known = api.service.vocabulary
        if (strange := next((token for token in tokens if not 0 <= token < known), None)) is not None:
            raise Refused(400, error_body(f"the prompt holds token {strange}: the model knows those from 0 to {known - 1}"))
        if len(tokens) + (most or 1) > context:
            asked = f"{len(tokens)} tokens of the prompt and {most or 1} of the answer"
            text = f"{asked} are more than the {context} of this server: shorten the prompt, or lower max_tokens"
            raise Refused(400, error_body(text, code="context_length_exceeded"))
        return most or context - len(tokens)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, body: TextRequest, prompts: Sequence[list[int]], most: int | None) -> Response:
        api = self._api
        rooms = [self._room(tokens, most) for tokens in prompts]
        choices = _Choices(len(prompts) * body.n)
        for number, (tokens, room) in enumerate(zip(prompts, rooms, strict=True)):
            for turn in range(body.n):
                index = number * body.n + turn
                sequence = TokenSequence(tokens=list(tokens), prompt=len(tokens), most=room, draws=body.draws(turn))
                choices.generations.append(
                    Generation(
                        sequence=sequence,
                        tokenizer=api.tokenizer,
                        listen=partial(choices.put, index),
                        stops=tuple(body.stop),
                        ends=frozenset() if body.ignore_eos else api.tokenizer.ends,
                    )
                )
        try:
            api.service.add(choices.generations)
        except InputError as error:
            raise Refused(429, error_body(str(error), kind="rate_limit_error")) from None
        except ConnectionLost as error:
            raise Refused(503, error_body(str(error), kind="server_error")) from None
        chat = isinstance(body, ChatRequest)
        answer = Answer(
            kind="chat" if chat else "completion",
            name=new_id("chatcmpl" if chat else "cmpl"),
            created=int(wall_time()),
            model=api.model,
            shows=body.shown is not None,
            numbers=body.return_token_ids,
            spell=api.tokenizer.spell,
        )
        read = sum(map(len, prompts))
        if body.stream:
            pieces = self._stream(choices, answer, read, usage=body.reports_usage)
            return StreamingResponse(pieces, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return await self._whole(request, choices, answer, read)

    async def _whole(self, request: Request, choices: _Choices, answer: Answer, read: int) -> Response:
        gone = asyncio.create_task(_gone(request))
        try:
            while True:
                coming = asyncio.create_task(choices.next())
                await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    return Response(status_code=499)  # nobody reads it
                found = coming.result()
                if found is None:
                    return JSONResponse(answer.whole(choices.pieces, read))
                if found[1].error is not None:
                    return JSONResponse(error_body(found[1].error, kind="server_error"), status_code=503)
        finally:
            gone.cancel()
            self._release(choices)

    async def _stream(self, choices: _Choices, answer: Answer, read: int, *, usage: bool) -> AsyncIterator[str]:
        """Server-sent events: a piece each, then ``[DONE]``."""
        try:
            while (found := await choices.next()) is not None:
                index, piece = found
                if piece.error is not None:
                    yield _event(error_body(piece.error, kind="server_error"))
                    return
                yield _event(answer.part(index, piece, first=len(choices.pieces[index]) == 1))
            if usage:
                yield _event(answer.end(choices.pieces, read))
            yield "data: [DONE]\n\n"
        finally:  # also when the client has gone
            self._release(choices)

    def _release(self, choices: _Choices) -> None:
        for generation in choices.generations:
            self._api.service.remove(generation)


async def _gone(request: Request) -> None:
    """Wait until the client has closed the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
