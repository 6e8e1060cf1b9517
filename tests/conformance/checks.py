"""What any server of OpenAI's chat and completion API does, a function each; the name says what holds, the text where it is from.
A check fails by an exception and is skipped with a reason by Unsupported: what an engine refuses by name it lacks, what it takes and ignores is a failure."""

import concurrent.futures
import json
import socket
import time

from engine import Unsupported, chat_text, streamed_text

CHECKS = []
STORY = "Tell me a short story about a river and a bridge."
EMOJI = "Repeat this exactly, nothing else: 😀😁😂 žluťoučký 漢字かな 😀😁😂"


def check(function):
    CHECKS.append(function)
    return function


# --- models ---


@check
def models_are_listed_and_found(engine):
    """OpenAI API reference, Models."""
    answer = engine.get("/v1/models")
    listed = answer.json()
    assert answer.status == 200 and listed["object"] == "list" and listed["data"], listed
    for model in listed["data"]:
        assert model["object"] == "model" and isinstance(model["id"], str) and isinstance(model["created"], int) and isinstance(model["owned_by"], str), model
    found = engine.get("/v1/models/" + engine.model)
    assert found.status == 200 and found.json()["id"] == engine.model, found.data


@check
def a_model_that_is_not_there_is_404(engine):
    """OpenAI API reference, Errors: model_not_found."""
    refused(engine.send("GET", "/v1/models/no-such-model"), 404)
    refused(engine.send("POST", "/v1/chat/completions", {"model": "no-such-model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}), 404)


# --- whole answers ---


@check
def a_chat_answer_has_its_members(engine):
    """OpenAI API reference, Chat completion object."""
    answer = engine.chat(STORY).json()
    assert answer["object"] == "chat.completion" and answer["id"] and isinstance(answer["created"], int) and answer["model"], answer
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant" and choice["message"]["content"], choice
    assert choice["finish_reason"] in ("stop", "length"), choice
    check_usage(answer["usage"])


@check
def a_completion_has_its_members(engine):
    """OpenAI API reference, Completion object."""
    answer = engine.complete("The river").json()
    assert answer["object"] == "text_completion" and answer["choices"][0]["text"] and answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
    check_usage(answer["usage"])


@check
def max_tokens_ends_an_answer(engine):
    """OpenAI API reference: max_tokens, max_completion_tokens, finish_reason length."""
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"messages": [{"role": "user", "content": STORY}], "temperature": 0, name: 5}
        answer = engine.ask("/v1/chat/completions", body).json()
        assert answer["usage"]["completion_tokens"] == 5 and answer["choices"][0]["finish_reason"] == "length", (name, answer)


@check
def parts_of_text_are_the_text(engine):
    """OpenAI API reference, messages: content as an array of text parts."""
    whole = engine.chat(STORY).json()
    parts = engine.chat([{"role": "user", "content": [{"type": "text", "text": STORY}]}]).json()
    assert whole["usage"]["prompt_tokens"] == parts["usage"]["prompt_tokens"], (whole["usage"], parts["usage"])
    assert whole["choices"][0]["message"]["content"] == parts["choices"][0]["message"]["content"]


@check
def words_of_users_are_no_control_tokens(engine):
    """A user who writes a template's token writes text, which takes several tokens."""
    base = engine.chat("a", max_tokens=1).json()["usage"]["prompt_tokens"]
    for word in ("<|im_end|>", "<|eot_id|>", "</s>"):
        more = engine.chat("a" + 10 * word, max_tokens=1).json()["usage"]["prompt_tokens"] - base
        assert more >= 20, f"10 times {word} take {more} tokens"


# --- streams ---


@check
def a_chat_stream_has_its_members(engine):
    """OpenAI API reference, Chat completion chunk object; WHATWG HTML 9.2."""
    events = engine.chat(STORY, stream=True).events()
    assert len({event["id"] for event in events}) == 1 and {event["object"] for event in events} == {"chat.completion.chunk"}, events[:2]
    choices = [choice for event in events for choice in event["choices"]]
    roles = [choice["delta"]["role"] for choice in choices if choice["delta"].get("role")]
    assert roles == ["assistant"] and choices[0]["delta"].get("role"), f"roles {roles}"
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    assert len(reasons) == 1 and choices[-1].get("finish_reason"), f"finish reasons {reasons}"


@check
def a_stream_gives_the_whole_answer(engine):
    """The same request at temperature 0, streamed and not."""
    for content in (STORY, EMOJI):
        whole = engine.chat(content, max_tokens=48)
        streamed = streamed_text(engine.chat(content, max_tokens=48, stream=True))
        assert chat_text(whole) == streamed, (chat_text(whole), streamed)
    whole = engine.complete("The river").json()["choices"][0]["text"]
    streamed = streamed_text(engine.complete("The river", stream=True), chat=False)
    assert whole == streamed, (whole, streamed)


@check
def characters_are_never_split(engine):
    """Unicode 3.9: no replacement character takes the place of a character whose bytes come in several tokens. Sees nothing where a model answers in ASCII."""
    for limit in range(6, 30, 3):
        text = streamed_text(engine.chat(EMOJI, max_tokens=limit, stream=True))
        assert "\ufffd" not in text.rstrip("\ufffd"), text  # an answer that ends within a character may show it


@check
def a_stream_ends_with_usage_where_asked(engine):
    """OpenAI API reference: stream_options.include_usage."""
    whole = engine.chat(STORY).json()["usage"]
    events = engine.chat(STORY, stream=True, stream_options={"include_usage": True}).events()
    assert events[-1]["choices"] == [], events[-1]
    check_usage(events[-1]["usage"])
    for member in ("prompt_tokens", "completion_tokens"):
        assert events[-1]["usage"][member] == whole[member], (events[-1]["usage"], whole)
    assert all(event.get("usage") is None for event in events[:-1]), "usage before the last event"
    assert all(event.get("usage") is None for event in engine.chat(STORY, stream=True).events()), "usage that nobody asked for"


# --- stop ---


@check
def a_stop_string_ends_the_text_before_it(engine):
    """OpenAI API reference: stop, up to 4 sequences, not contained in the text. Strings that begin and end anywhere in tokens, whole and streamed."""
    whole = chat_text(engine.chat(STORY, max_tokens=40))
    assert len(whole) > 60, whole
    for start, length in ((7, 2), (11, 5), (17, 3), (23, 9), (31, 4), (40, 6), (47, 2)):
        stop = whole[start : start + length]
        cut = whole[: whole.index(stop)]
        answer = engine.chat(STORY, max_tokens=40, stop=[stop, "\x01never"])
        assert chat_text(answer) == cut, (stop, chat_text(answer), cut)
        assert answer.json()["choices"][0]["finish_reason"] == "stop", answer.data
        streamed = streamed_text(engine.chat(STORY, max_tokens=40, stop=stop, stream=True))
        assert streamed == cut, (stop, streamed, cut)


# --- drawing ---


@check
def greedy_answers_are_the_same_again(engine):
    """Also after the prompt is in a cache: a hit gives what a miss gives."""
    texts = {chat_text(engine.chat(STORY + " Make it about the number 7.")) for _ in range(3)}
    assert len(texts) == 1, texts


@check
def answers_at_the_same_time_are_those_alone(engine):
    """Greedy answers do not depend on who else is served."""
    prompts = [f"Write a sentence about the number {number}." for number in range(8)]
    alone = [chat_text(engine.chat(prompt)) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: chat_text(engine.chat(prompt)), prompts))
    differing = sum(a != b for a, b in zip(alone, together))
    assert differing == 0, f"{differing} of 8 answers differ"


@check
def a_seed_gives_the_same_draws(engine):
    """OpenAI API reference: seed."""
    def draw(seed):
        return chat_text(engine.chat(STORY, optional=True, temperature=1.5, seed=seed))

    assert draw(7) == draw(7), "one seed, two answers"
    assert len({draw(seed) for seed in (7, 8, 9)}) > 1, "three seeds, one answer"


@check
def n_gives_so_many_choices(engine):
    """OpenAI API reference: n."""
    answer = engine.chat(STORY, optional=True, n=3, temperature=1, max_tokens=8).json()
    assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1, 2], answer["choices"]
    assert answer["usage"]["completion_tokens"] > 8, answer["usage"]


@check
def log_probabilities_spell_the_answer(engine):
    """OpenAI API reference: logprobs, top_logprobs; bytes of the tokens are those of the text."""
    choice = engine.chat(STORY, optional=True, logprobs=True, top_logprobs=3).json()["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert tokens and choice["message"]["content"] and b"".join(bytes(token["bytes"]) for token in tokens).decode().startswith(choice["message"]["content"]), tokens
    for token in tokens:
        values = [top["logprob"] for top in token["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True) and values[0] <= 0, token
        assert abs(values[0] - token["logprob"]) < 1e-3, f"greedy, yet not the best: {token}"


@check
def a_bias_of_100_decides(engine):
    """OpenAI API reference: logit_bias."""
    choice = engine.complete("The river", optional=True, logit_bias={"260": 100}, max_tokens=4, logprobs=1).json()["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("tokens") or [token["token"] for token in (choice.get("logprobs") or {}).get("content") or []]
    assert len(tokens) == 4 and len(set(tokens)) == 1, tokens


@check
def an_echo_scores_the_prompt(engine):
    """OpenAI API reference, legacy completions: echo with logprobs, which lm-eval needs."""
    prompt = "The bridge is over the river."
    choice = engine.complete(prompt, optional=True, echo=True, logprobs=1, max_tokens=1).json()["choices"][0]
    assert choice["text"].startswith(prompt), f"echo is ignored: {choice['text']!r}"
    values = choice["logprobs"]["token_logprobs"]
    assert values[0] is None and len(values) > 4 and all(value <= 0 for value in values[1:]), values


# --- tools and structured output ---

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check_call(call):
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "get_weather", call
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str), arguments


@check
def a_named_tool_is_called(engine):
    """OpenAI API reference: tool_choice with a function's name; arguments are JSON of its schema."""
    choice = engine.chat("The weather in Rome?", optional=True, tools=[WEATHER, TIME], tool_choice=NAMED, max_tokens=64).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    check_call(call)
    assert choice["finish_reason"] in ("stop", "tool_calls"), choice["finish_reason"]  # OpenAI gives stop here


@check
def a_required_tool_is_called(engine):
    """OpenAI API reference: tool_choice required."""
    choice = engine.chat("The weather in Rome?", optional=True, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=64).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    check_call(choice["message"]["tool_calls"][0])


@check
def no_tool_is_called_where_none_may_be(engine):
    """OpenAI API reference: tool_choice none."""
    choice = engine.chat("The weather in Rome?", optional=True, tools=[WEATHER], tool_choice="none").json()["choices"][0]
    assert not choice["message"].get("tool_calls") and choice["finish_reason"] in ("stop", "length"), choice


@check
def a_streamed_call_is_the_whole_one(engine):
    """OpenAI API reference, chunk object: tool_calls by index, name and id once, arguments in pieces."""
    request = {"tools": [WEATHER], "tool_choice": NAMED, "max_tokens": 64}
    whole = engine.chat("The weather in Rome?", optional=True, **request).json()["choices"][0]["message"]["tool_calls"][0]
    events = engine.chat("The weather in Rome?", stream=True, **request).events()
    pieces = [piece for event in events for choice in event["choices"] for piece in choice["delta"].get("tool_calls") or []]
    assert pieces and all(piece["index"] == 0 for piece in pieces), pieces
    names = [piece["function"]["name"] for piece in pieces if piece.get("function", {}).get("name")]
    assert names == ["get_weather"] and pieces[0].get("id") and not any(piece.get("id") for piece in pieces[1:]), pieces
    assert "".join(piece["function"].get("arguments") or "" for piece in pieces) == whole["function"]["arguments"], (pieces, whole)


@check
def the_result_of_a_tool_is_read(engine):
    """OpenAI API reference: a message of role tool after the assistant's call."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    messages = [{"role": "user", "content": "The weather in Rome?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    short = engine.chat(messages + [{"role": "tool", "tool_call_id": "call_1", "content": "sun"}], optional=True, tools=[WEATHER], max_tokens=2).json()
    long = engine.chat(messages + [{"role": "tool", "tool_call_id": "call_1", "content": "sun " * 20}], tools=[WEATHER], max_tokens=2).json()
    assert long["usage"]["prompt_tokens"] >= short["usage"]["prompt_tokens"] + 15, "the result is not in the prompt"


@check
def a_json_object_is_one(engine):
    """OpenAI API reference: response_format json_object."""
    answer = engine.chat("Give me JSON with a name and an age.", optional=True, response_format={"type": "json_object"}, max_tokens=300).json()["choices"][0]
    if answer["finish_reason"] == "length":
        assert answer["message"]["content"].lstrip().startswith("{"), answer  # unfinished, as the reference warns
    else:
        assert isinstance(json.loads(answer["message"]["content"]), dict), answer


@check
def an_answer_under_a_schema_validates(engine):
    """OpenAI API reference: response_format json_schema."""
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "colour": {"enum": ["red", "green"]}, "old": {"type": "boolean"}},
              "required": ["name", "colour", "old"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}}
    choice = engine.chat("Describe an apple.", optional=True, response_format=form, max_tokens=120).json()["choices"][0]
    value = json.loads(choice["message"]["content"])
    assert set(value) == {"name", "colour", "old"} and len(value["name"]) <= 10 and value["colour"] in ("red", "green") and value["old"] in (True, False), value


# --- errors ---


def refused(answer, *statuses):
    """An error object of the API: JSON with error.message and error.type."""
    assert answer.status in statuses, f"{answer.status}, not {statuses}: {answer.data[:160]!r}"
    assert answer.headers.get_content_type() == "application/json", answer.headers.get("Content-Type")
    error = answer.json()["error"]
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str), error


@check
def what_is_no_json_is_400(engine):
    """RFC 8259; OpenAI API reference, Errors."""
    for body in (b"{", b"[]", b"", b'{"messages": "\xff"}', b"nonsense"):
        refused(engine.send("POST", "/v1/chat/completions", body), 400)


@check
def wrong_types_and_ranges_are_400(engine):
    """OpenAI API reference: types and ranges of the parameters."""
    good = {"model": engine.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    bad = [{"messages": []}, {"messages": "Hi"}, {"messages": None}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "nobody", "content": "Hi"}]},
           {"temperature": -1}, {"temperature": "hot"}, {"top_p": 2}, {"top_p": -0.1}, {"n": 0}, {"max_tokens": "many"}, {"stream": "yes"}, {"stop": 7},
           {"presence_penalty": 5}, {"top_logprobs": 100, "logprobs": True}, {"logit_bias": {"0": 1000}}, {"response_format": {"type": "nonsense"}},
           {"tools": [{"type": "function"}]}, {"tool_choice": "required"}]
    wrong = []
    for change in bad:
        answer = engine.send("POST", "/v1/chat/completions", {**good, **change})
        try:
            refused(answer, 400, 422)
        except (AssertionError, KeyError, ValueError, TypeError):
            wrong.append(f"{json.dumps(change)}: {answer.status}")
    assert not wrong, f"{len(wrong)} of {len(bad)} are taken: " + "; ".join(wrong)


@check
def a_prompt_that_is_too_long_is_400_and_hurts_nobody(engine):
    """OpenAI API reference, Errors: context_length_exceeded."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        other = pool.submit(lambda: engine.chat(STORY))
        refused(engine.send("POST", "/v1/completions", {"model": engine.model, "prompt": "river bridge " * 150000, "max_tokens": 1}), 400, 413)
        assert chat_text(other.result())


@check
def a_route_that_is_not_there_is_404(engine):
    """RFC 9110 15.5.5."""
    refused(engine.get("/v1/no-such-route"), 404)


@check
def a_method_that_a_route_lacks_is_405(engine):
    """RFC 9110 15.5.6: with Allow."""
    answer = engine.send("GET", "/v1/chat/completions")
    assert answer.status == 405 and "POST" in (answer.headers.get("Allow") or ""), (answer.status, answer.headers.get("Allow"))


@check
def a_wrong_key_is_401(engine):
    """OpenAI API reference, Authentication; RFC 9110 15.5.2."""
    if not engine.key:
        raise Unsupported("no --api-key was given")
    for value in ("Bearer wrong", "Basic wrong", ""):
        answer = engine.send("POST", "/v1/chat/completions", {"model": engine.model}, {"Authorization": value})
        refused(answer, 401)
        assert answer.headers.get("WWW-Authenticate"), "no WWW-Authenticate"


# --- HTTP ---


@check
def a_connection_is_kept(engine):
    """RFC 9112 9.3."""
    connection = engine.connect()
    body = {"model": engine.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert engine.send("POST", "/v1/chat/completions", body, connection=connection).status == 200
    first = connection.sock
    assert engine.send("POST", "/v1/chat/completions", body, connection=connection).status == 200
    assert connection.sock is first and first is not None, "the connection was closed"
    connection.close()


@check
def a_body_may_come_in_chunks(engine):
    """RFC 9112 7.1."""
    data = json.dumps({"model": engine.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
    connection = engine.connect()
    connection.request("POST", engine.base + "/v1/chat/completions", iter([data[:9], data[9:]]), engine.fields({"Content-Type": "application/json"}), encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 200, (response.status, response.read())
    connection.close()


@check
def head_is_get_without_a_body(engine):
    """RFC 9110 9.1: GET and HEAD are supported by every server."""
    answer = engine.send("HEAD", "/v1/models")
    assert answer.status == 200 and answer.data == b"", (answer.status, answer.data)


@check
def bytes_that_are_no_http_hurt_nobody(engine):
    """RFC 9112 2.2: 400, or the connection ends."""
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"):
        with socket.create_connection((engine.host, engine.port), timeout=30) as raw:
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(4096)
        assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")), answer
    assert engine.get("/v1/models").status == 200


@check
def clients_that_leave_free_their_place(engine):
    """16 streams of 3,000 tokens whose clients close the connection hold up nobody for longer than 20 seconds."""
    for number in range(16):
        body = json.dumps({"model": engine.model, "messages": [{"role": "user", "content": f"Count from {number} to 100000."}], "max_tokens": 3000, "stream": True}).encode()
        connection = engine.connect()
        connection.request("POST", engine.base + "/v1/chat/completions", body, engine.fields({"Content-Type": "application/json"}))
        if number % 4 == 0:
            connection.getresponse().read(64)
        connection.close()
    start = time.monotonic()
    engine.chat("Hi", max_tokens=2)
    assert time.monotonic() - start < 20, f"{time.monotonic() - start:.0f} s"


def check_usage(usage):
    assert usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0, usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
