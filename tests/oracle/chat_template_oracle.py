#!/usr/bin/env python3
"""Compares oscar_render_chat with Python's jinja2 set up as transformers sets it up.

    chat_template_oracle.py RENDERER [--seed N] [--random N] [--templates FOLDER]
    chat_template_oracle.py --record          writes tests/data/chat_templates/expected.json with jinja2

Both sides must give the same text, or both must fail. Exit 77 when jinja2 is not installed.
"""
import argparse
import copy
import datetime
import functools
import json
import pathlib
import random
import subprocess
import sys
import time
import warnings

try:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: the Python package jinja2 is not installed")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chat_template_snippets import SNIPPETS, UNSUPPORTED, VARIABLES, Generator  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat_templates"
warnings.simplefilter("ignore", SyntaxWarning)  # of the Python code that jinja2 makes of odd snippets
NOW = 1_741_000_000


class GenerationMark(Extension):
    """{% generation %} as transformers parses it: a call block that prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


@functools.lru_cache(maxsize=None)
def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        moment = datetime.datetime.now() if now is None else datetime.datetime.fromtimestamp(now)
        return moment.strftime(format)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMark, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


@functools.lru_cache(maxsize=64)
def compiled(template, now):
    return environment(now).from_string(template)


def expected(case):
    """(text, None) or (None, reason)."""
    try:
        if "messages" not in case:
            return compiled(case["template"], case["now"]).render(**copy.deepcopy(case["variables"])), None
        messages = []
        for message in case["messages"]:
            # As the engine hands them on: absent fields are absent, a turn that only calls tools has no content.
            content = message.get("content") or ""
            made = {"role": message["role"], "content": None if message.get("tool_calls") and not content else content}
            made.update({key: message[key] for key in ("tool_calls", "tool_call_id", "name") if message.get(key)})
            messages.append(made)
        variables = {key: case[key] for key in ("bos", "eos") if case.get(key)}
        variables = {key + "_token": value for key, value in variables.items()} | (case.get("extra") or {})
        return compiled(case["template"], None).render(
            messages=messages, tools=case.get("tools"), documents=None, add_generation_prompt=case["add_generation_prompt"], **variables), None
    except Exception as error:  # noqa: BLE001: whatever Python raises is a failure of the template
        return None, f"{type(error).__name__}: {error}"


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather at a place,\nnow.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "City & country <\"x\">"}, "unit": {"enum": ["C", "F"]},
                                     "days": {"type": "array", "items": {"type": "integer"}}, "limit": {"type": ["number", "null"], "minimum": 0.0}},
    "required": ["place"]}}}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, identity="call_1"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    user, system = {"role": "user", "content": "What is 2 + 2?"}, {"role": "system", "content": " Be brief.\n"}
    answer = {"role": "assistant", "content": "4"}
    asks = {"role": "assistant", "tool_calls": [call("get_weather", {"place": "Zürich", "days": [1, 2]})]}
    asks_text = {"role": "assistant", "content": "Let me look.", "tool_calls": [call("get_weather", '{"place": "Rome"}'), call("search", {}, "call_2")]}
    result = {"role": "tool", "content": '{"t": 21.5, "sky": "☀"}', "tool_call_id": "call_1", "name": "get_weather"}
    second = {"role": "tool", "content": "none\nfound", "tool_call_id": "call_2"}
    thinks = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nFour."}
    return [
        [user], [system, user], [system, user, answer, {"role": "user", "content": "And 3 + 3?\n"}], [user, answer], [system],
        [{"role": "user", "content": "héllo ☃ 😀 <|im_end|> {{ x }} {% if %}"}], [user, asks, result], [system, user, asks, result, answer, user],
        [user, asks_text, result, second], [user, thinks, user], [user, thinks], [user, asks, result, thinks], [user, answer, system, user], [],
        [{"role": "assistant", "content": ""}, user], [{"role": "user", "content": ""}],
    ]


def chat_cases(templates):
    extras = [None, {"enable_thinking": False}, {"enable_thinking": True, "date_string": "26 Jul 2024", "tools_in_user_message": False},
              {"date_string": "1 Jan", "builtin_tools": ["interpreter", "search"], "bos_token": "<override>"}]
    for name, template in templates:
        for messages in conversations():
            for tools in (None, [WEATHER], [WEATHER, SEARCH], []):
                for generate in (True, False):
                    for extra in extras:
                        yield {"name": name, "template": template, "bos": "<s>", "eos": "</s>", "messages": messages, "tools": tools,
                               "add_generation_prompt": generate, "extra": extra}


def read_templates(folder):
    return [(path.name, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.jinja"))]


def record():
    cases = []
    for name, template in read_templates(DATA):
        chosen = [c for c in chat_cases([(name, template)]) if "date_string" in (c["extra"] or {}) or not name.startswith("style_llama")]
        for case in random.Random(name).sample(chosen, 12):
            text, _ = expected(case)
            cases.append({key: value for key, value in case.items() if key != "template"} | {"text": text})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (DATA / "expected.json").write_text("[\n" + lines + "\n]\n", encoding="utf-8")


def compare(renderer, cases, refusals_count):
    """Runs all cases; returns (number that differ, number both fail, number refused by us alone)."""
    done = subprocess.run([renderer], input=json.dumps(cases), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{renderer} ended with {done.returncode}: {done.stderr[-2000:]}")
    num_different = num_failed = num_refused = 0
    for case, actual in zip(cases, json.loads(done.stdout), strict=True):
        text, reason = expected(case)
        if actual.get("text") != text:
            if refusals_count and actual.get("code") == "unsupported":
                num_refused += 1
                continue
            num_different += 1
            if num_different <= 20:
                about = {key: value for key, value in case.items() if key not in ("variables", "now")}
                if "name" in case:
                    del about["template"]
                print(f"--- {json.dumps(about, ensure_ascii=False)[:1500]}\n jinja2: {text!r} {reason or ''}\n  oscar: {actual}")
        num_failed += text is None
    return num_different, num_failed, num_refused


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("renderer", nargs="?")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--templates", type=pathlib.Path, default=DATA)
    options = parser.parse_args()
    if options.record:
        return record()
    snippet = lambda template: {"template": template, "variables": VARIABLES, "now": NOW}
    generator = Generator(random.Random(options.seed))
    generated = [snippet(generator.statement(generator.random.randrange(4))) for _ in range(options.random)]
    num_different = 0
    for name, cases, refusals_count in (("chats", list(chat_cases(read_templates(options.templates))), False),
                                        ("snippets", [snippet(t) for t in SNIPPETS], False), (f"random (seed {options.seed})", generated, True)):
        while True:
            day = time.strftime("%x")
            different, failed, refused = compare(options.renderer, cases, refusals_count)
            if day == time.strftime("%x"):  # templates print the date: once more when it changed meanwhile
                break
        print(f"{name}: {len(cases)} cases, {different} differ, {failed} fail in both, {refused} refused as not supported")
        num_different += different
    done = subprocess.run([options.renderer], input=json.dumps([snippet(t) for t in UNSUPPORTED]), capture_output=True, text=True, check=True)
    for template, actual in zip(UNSUPPORTED, json.loads(done.stdout), strict=True):
        if actual.get("code") != "unsupported":
            print(f"--- {template}\n must be refused as not supported: {actual}")
            num_different += 1
    print(f"refusals: {len(UNSUPPORTED)} cases")
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
