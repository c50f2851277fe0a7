"""The server over HTTP with nothing but the standard library: answers, errors, limits, security, order, cancelling."""
import http.client
import json
import os
import re
import socket
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
os.environ["SCRIPTED_ARGS"] = " ".join(sys.argv[2:])
from harness import SCRIPT, TOOL, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

CHAT, COMPLETION, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HELLO = "Hi **there**, ünïcode 🎉!"


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def claude(text, **more):
    return {"max_tokens": 1000, **user(text, **more)}


def deltas(body):
    return [json.loads(data) for _, data in events(body) if data != "[DONE]"]


def chat_text(body):
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in deltas(body) if c["choices"])


@test
def whole_and_streamed_answers_have_the_same_text():
    with Server() as s:
        whole = s.json(CHAT, user("hello"))
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": HELLO}, whole
        assert whole["choices"][0]["finish_reason"] == "stop"
        stream = s.post(CHAT, user("hello", stream=True))
        assert stream.getheader("Content-Type").startswith("text/event-stream")
        assert chat_text(stream.body) == HELLO
        assert events(stream.body)[-1] == (None, "[DONE]")
        assert all("usage" not in c for c in deltas(stream.body)), "usage only when asked for"
        counted = deltas(s.post(CHAT, user("hello", stream=True, stream_options={"include_usage": True})).body)
        assert counted[-1]["choices"] == [] and counted[-1]["usage"]["completion_tokens"] == len(HELLO.encode())
        assert all(c.get("usage") is None for c in counted[:-1])
        raw = s.json(COMPLETION, {"prompt": "say hello"})
        assert raw["object"] == "text_completion" and raw["choices"][0]["text"] == HELLO
        streamed = deltas(s.post(COMPLETION, {"prompt": "say hello", "stream": True}).body)
        assert "".join(c["choices"][0]["text"] for c in streamed) == HELLO
        message = s.json(MESSAGES, claude("hello"))
        assert message["content"] == [{"type": "text", "text": HELLO}] and message["stop_reason"] == "end_turn"
        named = events(s.post(MESSAGES + "?beta=true", claude("hello", stream=True)).body)
        names = [n for n, _ in named]
        assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"] and "ping" in names
        assert all(json.loads(d)["type"] == n for n, d in named)
        texts = [json.loads(d)["delta"]["text"] for n, d in named if n == "content_block_delta"]
        assert "".join(texts) == HELLO


@test
def a_continued_conversation_is_not_read_again():
    with Server() as s:
        first = s.json(CHAT, user("hello"))
        talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": HELLO}, {"role": "user", "content": "hello again"}]
        second = s.json(CHAT, {"messages": talk})
        reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reused == first["usage"]["total_tokens"], (first["usage"], second["usage"])
        third = s.json(MESSAGES, {"max_tokens": 5, "messages": talk})
        usage = third["usage"]
        assert usage["cache_read_input_tokens"] > 0
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == second["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == 5 and third["stop_reason"] == "max_tokens"


@test
def wrong_values_are_named_and_never_a_500():
    cases = [
        (CHAT, {}, "messages"), (CHAT, {"messages": []}, "messages"), (CHAT, {"messages": {}}, "messages"),
        (CHAT, {"messages": [1]}, "messages[0]"), (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "messages[0].content[0]"),
        (CHAT, user("x", temperature="hot"), "temperature"), (CHAT, user("x", temperature=-1), "temperature"),
        (CHAT, user("x", max_tokens="many"), "max_tokens"), (CHAT, user("x", max_tokens=0), "max_tokens"),
        (CHAT, user("x", stream="yes"), "stream"), (CHAT, user("x", n=17), "n"), (CHAT, user("x", stop=[1]), "stop"),
        (CHAT, user("x", stop={"a": 1}), "stop"), (CHAT, user("x", stop=["a"] * 17), "stop"),
        (CHAT, user("x", top_logprobs=3), "top_logprobs"), (CHAT, user("x", logprobs=True, top_logprobs=21), "top_logprobs"),
        (CHAT, user("x", logit_bias={"a": 1}), "logit_bias"), (CHAT, user("x", logit_bias={"99999": 1}), "logit_bias"),
        (CHAT, user("x", logit_bias={"1": 101}), "logit_bias.1"), (CHAT, user("x", tools=[{"type": "function"}]), "tools[0]"),
        (CHAT, user("x", tools=[{"type": "function", "function": {"name": 1}}]), "tools[0].function.name"),
        (CHAT, user("x", tool_choice="required"), "tool_choice"), (CHAT, user("x", reasoning_effort="huge"), "reasoning_effort"),
        (CHAT, user("x", tool_choice="perhaps"), "tool_choice"), (CHAT, user("x", tool_choice={"type": "function"}), "tool_choice"),
        (CHAT, user("x", tools=[{"type": "function", "function": TOOL}], tool_choice={"type": "function", "function": {"name": "other"}}), "tool_choice"),
        (CHAT, user("x", response_format={"type": "xml"}), "response_format.type"),
        (CHAT, user("x", response_format={"type": "json_schema"}), "response_format.json_schema.schema"),
        (CHAT, user("x", response_format={"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"uniqueItems": True}}}}}),
         "response_format.json_schema.schema"),
        (CHAT, user("x", tools=[{"type": "function", "function": TOOL}], tool_choice="required",
                    response_format={"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}), "response_format.json_schema.schema"),
        (CHAT, user("x", json_schema={"multipleOf": 2}), "json_schema"), (COMPLETION, {"prompt": "x", "json_schema": {"not": {}}}, "json_schema"),
        (CHAT, user("x", grammar="root ::= root"), "grammar"), (CHAT, user("x", grammar=1), "grammar"),
        (CHAT, user("x", grammar="root ::= [a]", json_schema={}), "grammar"), (CHAT, user("x", json_schema={}, ignore_eos=True), "ignore_eos"),
        (CHAT, user("x", tool_choice="required", tools=[{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"a": {"type": "array", "contains": {}}}}}}]), "tools"),
        (CHAT, user("x", chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
        (CHAT, user("x", stream_options=1), "stream_options"), (CHAT, user("x", seed=1.5), "seed"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"), (CHAT, {"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": []}, *user("x")["messages"]]}, "messages[0].content"),
        (CHAT, {"messages": [*user("x")["messages"], {"role": "tool", "tool_call_id": "c", "content": None}]}, "messages[1].content"),
        (COMPLETION, {}, "prompt"), (COMPLETION, {"prompt": ""}, "prompt"), (COMPLETION, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETION, {"prompt": [99999]}, "prompt"), (COMPLETION, {"prompt": "x", "logprobs": 30}, "logprobs"),
        (COMPLETION, {"prompt": "x", "echo": True}, "echo"), ("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"),
        ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [99999]}, "tokens"),
    ]
    with Server() as s:
        for path, body, param in cases:
            response = s.post(path, body)
            error = json.loads(response.body)["error"]
            assert response.status == 400 and error["type"] == "invalid_request_error", (path, body, response.body)
            assert error["param"] == param and error["message"], (path, body, error)
        for body, words in [({"messages": [{"role": "user", "content": "x"}]}, "max_tokens: Field required"),
                            ({"max_tokens": 5}, "messages: Field required"), (claude("x", tool_choice={"type": "any"}), "tool_choice"),
                            (claude("x", tool_choice={"type": "some"}), "tool_choice.type"), (claude("x", tool_choice={"type": "tool"}), "tool_choice.name"),
                            (claude("x", thinking={"type": "often"}), "thinking.type"), (claude("x", tools=[{"type": "bash_1", "name": "b"}]), "tools.0"),
                            ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
                            ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id")]:
            response = s.post(MESSAGES, body)
            value = json.loads(response.body)
            assert response.status == 400 and value["type"] == "error", (body, value)
            assert value["error"]["type"] == "invalid_request_error" and words in value["error"]["message"], (body, value)


@test
def broken_bodies_are_400_and_say_why():
    with Server() as s:
        deep = "[" * 100 + "]" * 100
        for body, words in [(b"", "no body"), (b"{", "not valid JSON"), (b"[]", "must be a JSON object"), (b"3", "must be a JSON object"),
                            (b'{"messages": "\xff"}', "not valid JSON"), (b'{"messages": "\\u0000"}', "not valid JSON"),
                            (b'{"a":' + deep.encode() + b"}", "deeper"), (b'{"a": 1} x', "not valid JSON"),
                            (b'{"seed": 99999999999999999999}', "not valid JSON"), (b'{"a": "\\ud800"}', "not valid JSON")]:
            response = s.post(CHAT, body)
            assert response.status == 400 and words in json.loads(response.body)["error"]["message"], (body, response.body)


@test
def unknown_members_are_ignored_and_null_is_absent():
    with Server() as s:
        answer = s.json(CHAT, user("hello", store=True, metadata={"a": 1}, user="me", service_tier="auto", temperature=None, stop=None,
                                   tools=None, tool_choice=None, max_tokens=None, stream=None, stream_options=None, logit_bias=None, n=None))
        assert answer["choices"][0]["message"]["content"] == HELLO
        assert s.json(MESSAGES, claude("hello", metadata={"user_id": "u"}, context_management={}, system=None))["content"]


@test
def what_real_clients_send_is_understood():
    with Server() as s:
        parts = {"messages": [
            {"role": "developer", "content": "be brief"}, {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"}, {"role": "system", "content": "a word in between"},
            {"role": "user", "content": "hello"}]}
        text = s.json("/apply-template", parts)["prompt"]
        assert text.startswith("<|im_start|>system\nbe brief\n\nbe kind<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>"), text
        assert "<|im_start|>system\na word in between<|im_end|>" in text
        assert s.json(CHAT, parts)["choices"][0]["message"]["content"] == HELLO
        blocks = {"max_tokens": 50, "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "what is the time?"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "let me look"},
                                              {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                                         {"type": "text", "text": "hello"}]}]}
        assert s.json(MESSAGES, blocks)["content"][0]["text"] == HELLO


@test
def a_template_that_wants_system_first_gets_it_first():
    template = ("{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}"
                "{%- endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}<|im_start|>assistant\n")
    with Server({"template": template}) as s:
        talk = [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}, {"role": "user", "content": "b"}]
        text = s.json("/apply-template", {"messages": talk})["prompt"]
        assert text.startswith("<|im_start|>system\nlate<|im_end|>\n<|im_start|>user\na<|im_end|>"), text
    with Server({"template": "{{ raise_exception('nothing pleases me') }}"}) as s:
        response = s.post(CHAT, user("a"))
        assert response.status == 400 and b"nothing pleases me" in response.body, response.body


BONN = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 5}}, "required": ["city", "days"],
        "additionalProperties": False}


@test
def an_answer_is_what_the_request_demands():
    script = {"answers": [{"match": "json", "text": 'Sure: {"city": "Bonn", "days": 3, "sky": "blue"} I hope this helps.'},
                          {"match": "call", "text": 'Well, <tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'},
                          {"match": "free", "text": "maybe"}]}
    tools = [{"type": "function", "function": TOOL}, {"type": "function", "function": {"name": "other"}}]
    with Server(script) as s:
        asked = user("json", response_format={"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": BONN}})
        whole = s.json(CHAT, asked)["choices"][0]
        assert json.loads(whole["message"]["content"]) == {"city": "Bonn", "days": 3} and whole["finish_reason"] == "stop", whole
        assert chat_text(s.post(CHAT, dict(asked, stream=True)).body) == whole["message"]["content"]
        loose = s.json(CHAT, user("json", response_format={"type": "json_object"}))["choices"][0]["message"]["content"]
        assert json.loads(loose) == {"city": "Bonn", "days": 3, "sky": "blue"}, loose
        assert json.loads(s.json(COMPLETION, {"prompt": "json", "json_schema": BONN})["choices"][0]["text"])["days"] == 3
        assert s.json(CHAT, user("free", grammar='root ::= "yes" | "no"'))["choices"][0]["message"]["content"] == "yes"
        begun = {"messages": [{"role": "user", "content": "json"}, {"role": "assistant", "content": '{"city": "Ulm",'}], "continue_final_message": True}
        rest = s.json(CHAT, dict(begun, json_schema=BONN))["choices"][0]["message"]["content"]
        assert json.loads('{"city": "Ulm",' + rest) == {"city": "Ulm", "days": 3}, rest
        misfit = s.post(CHAT, dict(begun, json_schema={"type": "array"}))
        assert misfit.status == 400 and b"beginning of the answer" in misfit.body, misfit.body
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            called = s.json(CHAT, user("call", tools=tools, tool_choice=choice))["choices"][0]
            call = called["message"]["tool_calls"][0]["function"]
            assert called["message"]["content"] is None and call["name"] == "get_weather", called
            assert json.loads(call["arguments"]) == {"city": "Rome", "days": 2}, called
        other = s.json(CHAT, user("call", tools=tools, tool_choice={"type": "function", "function": {"name": "other"}}))["choices"][0]
        assert other["message"]["tool_calls"][0]["function"]["name"] == "other", other
        either = user("json", tools=tools, response_format={"type": "json_object"})
        assert json.loads(s.json(CHAT, either)["choices"][0]["message"]["content"])["city"] == "Bonn"
        named = [{"name": "get_weather", "input_schema": TOOL["parameters"]}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
            used = s.json(MESSAGES, claude("call", tools=named, tool_choice=choice))
            assert used["stop_reason"] == "tool_use" and [b["type"] for b in used["content"]] == ["tool_use"], used
            assert used["content"][0]["input"] == {"city": "Rome", "days": 2}, used


@test
def what_is_demanded_begins_behind_the_thoughts():
    script = {"template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n",
              "answers": [{"match": "free", "text": "One may say so.</think>\n\nmaybe"}]}
    with Server(script) as s:
        message = s.json(CHAT, user("free", grammar='root ::= "yes" | "no"'))["choices"][0]["message"]
        assert message["reasoning_content"] == "One may say so." and message["content"] == "yes", message


@test
def thoughts_and_tool_calls_come_apart():
    tools = {"tools": [{"type": "function", "function": TOOL}]}
    arguments = {"city": "Paris", "days": 3}
    with Server() as s:
        thought = s.json(CHAT, user("think"))
        message = thought["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "There are three.", "reasoning_content": "First I count the layers."}, message
        details = thought["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 20 < details < 50, details
        whole = s.json(CHAT, user("weather", **tools))["choices"][0]
        call = whole["message"]["tool_calls"][0]
        assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None, whole
        assert call["type"] == "function" and call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"]) == arguments
        assert whole["message"]["reasoning_content"] == "A tool helps."
        both = s.json(CHAT, user("weather in two cities", **tools))["choices"][0]
        assert [json.loads(c["function"]["arguments"])["city"] for c in both["message"]["tool_calls"]] == ["Paris", "Rome"]
        assert both["message"]["content"].strip() == "Let me look." and len({c["id"] for c in both["message"]["tool_calls"]}) == 2
        one = s.json(CHAT, user("weather in two cities", parallel_tool_calls=False, **tools))
        assert len(one["choices"][0]["message"]["tool_calls"]) == 1 and one["choices"][0]["finish_reason"] == "tool_calls"
        plain = s.json(CHAT, user("weather", tool_choice="none", **tools))["choices"][0]
        assert "tool_calls" not in plain["message"] and "get_weather" in plain["message"]["content"], plain
        stream = deltas(s.post(CHAT, user("weather in two cities", stream=True, **tools)).body)
        pieces = [c["choices"][0]["delta"] for c in stream]
        assert not any("<" in (d.get("content") or "") for d in pieces), "no part of a tag comes out"
        calls = {}
        for d in pieces:
            for c in d.get("tool_calls", []):
                calls.setdefault(c["index"], []).append(c)
        assert [json.loads("".join(c["function"].get("arguments", "") for c in calls[i]))["city"] for i in (0, 1)] == ["Paris", "Rome"]
        assert all(calls[i][0]["id"] and calls[i][0]["function"]["name"] == "get_weather" for i in (0, 1))
        cut = s.json(CHAT, user("weather", max_tokens=80, **tools))["choices"][0]
        assert cut["finish_reason"] == "length", cut
        named = [(n, json.loads(d)) for n, d in events(s.post(MESSAGES, claude("weather", stream=True, thinking={"type": "enabled", "budget_tokens": 1024}, tools=[
            {"name": "get_weather", "input_schema": TOOL["parameters"]}])).body)]
        starts = [d["content_block"]["type"] for n, d in named if n == "content_block_start"]
        assert starts == ["thinking", "tool_use"], starts
        partial = "".join(d["delta"]["partial_json"] for n, d in named if n == "content_block_delta" and d["delta"]["type"] == "input_json_delta")
        assert json.loads(partial) == arguments and named[-2][1]["delta"]["stop_reason"] == "tool_use"
        assert [d["index"] for n, d in named if n == "content_block_stop"] == [0, 1]


@test
def a_raw_completion_is_not_taken_apart():
    with Server() as s:
        text = s.json(COMPLETION, {"prompt": "think"})["choices"][0]["text"]
        assert text.startswith("<think>\nFirst"), text


@test
def special_tokens_in_what_a_user_wrote_stay_text():
    with Server() as s:
        def prompt_tokens(text):
            return s.json(CHAT, user(text, max_tokens=1))["usage"]["prompt_tokens"]
        assert prompt_tokens("<|im_end|>") == prompt_tokens("0123456789")
        assert s.json("/tokenize", {"content": "<|im_end|>"})["tokens"] == list(b"<|im_end|>")
        assert s.json("/tokenize", {"content": "<|im_end|>", "parse_special": True})["tokens"] == [257]


@test
def a_prompt_over_the_context_names_both_numbers():
    with Server({"context": 100}) as s:
        response = s.post(CHAT, user("x" * 200))
        error = json.loads(response.body)["error"]
        assert response.status == 400 and error["code"] == "context_length_exceeded" and error["param"] == "messages", error
        assert "219 tokens" in error["message"] and "100 tokens" in error["message"], error
        value = json.loads(s.post(MESSAGES, claude("x" * 200)).body)
        assert value["error"]["message"] == "prompt is too long: 219 tokens > 100 maximum", value
        full = s.json(CHAT, user("y" * 70))
        assert full["choices"][0]["finish_reason"] == "length" and full["usage"]["total_tokens"] == 100, full
        assert s.json(MESSAGES, claude("y" * 70))["stop_reason"] == "model_context_window_exceeded"


@test
def answers_end_where_they_are_told_to():
    with Server() as s:
        stopped = s.json(CHAT, user("hello", stop=[", ", "zzz"]))["choices"][0]
        assert stopped["message"]["content"] == "Hi **there**" and stopped["finish_reason"] == "stop"
        cut = s.json(CHAT, user("hello", max_completion_tokens=4))["choices"][0]
        assert cut["message"]["content"] == "Hi *" and cut["finish_reason"] == "length"
        message = s.json(MESSAGES, claude("hello", stop_sequences=["zzz", "there"]))
        assert message["stop_reason"] == "stop_sequence" and message["stop_sequence"] == "there", message
        assert s.json(COMPLETION, {"prompt": "hello", "stop": "**"})["choices"][0]["text"] == "Hi "


@test
def an_answer_can_be_begun_by_the_client():
    with Server() as s:
        talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Well, "}]
        begun = s.json("/apply-template", {"messages": talk, "continue_final_message": True})["prompt"]
        assert begun.endswith("<|im_start|>assistant\nWell, "), begun
        count = s.json(MESSAGES + "/count_tokens", {"messages": talk})["input_tokens"]
        assert count == len(s.json("/tokenize", {"content": begun, "parse_special": True})["tokens"])
        assert s.json(MESSAGES, {"max_tokens": 9, "messages": talk})["usage"]["input_tokens"] == count


@test
def logprobs_come_in_the_shape_of_each_api():
    with Server() as s:
        content = s.json(CHAT, user("hello", logprobs=True, top_logprobs=2, max_tokens=3))["choices"][0]["logprobs"]["content"]
        assert [e["token"] for e in content] == ["H", "i", " "] and content[0]["bytes"] == [72], content
        assert content[0]["logprob"] == -0.25 and [t["logprob"] for t in content[0]["top_logprobs"]] == [-0.25, -1.5], content
        streamed = deltas(s.post(CHAT, user("hello", logprobs=True, stream=True)).body)
        entries = [e for c in streamed for e in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
        assert bytes(b for e in entries for b in e["bytes"]).decode() == HELLO
        old = s.json(COMPLETION, {"prompt": "hello", "logprobs": 1, "max_tokens": 2})["choices"][0]["logprobs"]
        assert old["tokens"] == ["H", "i"] and old["token_logprobs"] == [-0.25, -0.25] and old["top_logprobs"] == [{"H": -0.25}, {"i": -0.25}], old


@test
def tokens_go_both_ways():
    with Server() as s:
        text = "héllo 🎉"
        tokens = s.json("/tokenize", {"content": text})["tokens"]
        assert tokens == list(text.encode()) and s.json("/detokenize", {"tokens": tokens})["content"] == text
        pieces = s.json("/tokenize", {"content": "aé", "with_pieces": True})["tokens"]
        assert pieces == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}], pieces
        assert s.json("/detokenize", {"tokens": [195]})["content"] == "\\xc3"
        assert s.json("/tokenize", {"content": ""})["tokens"] == []


@test
def the_server_tells_what_it_is():
    with Server(args=["--alias", "pebble"]) as s:
        models = s.json("/v1/models")
        assert models["data"][0]["id"] == "pebble" and models["data"][0]["type"] == "model" and models["has_more"] is False
        assert s.json("/v1/models/pebble")["id"] == "pebble"
        missing = s.get("/v1/models/gravel")
        assert missing.status == 404 and json.loads(missing.body)["error"]["code"] == "model_not_found"
        assert s.json("/props")["total_slots"] == 1 and s.json("/props")["default_generation_settings"]["n_ctx"] == 4096
        assert s.json("/slots")[0]["is_processing"] is False
        refused = s.post("/slots/0?action=save", {"filename": "a"})
        assert refused.status == 501 and b"--session-dir" in refused.body, refused.body
        s.json(CHAT, user("hello"))
        status = s.json("/v1/status")
        assert status["state"] == "ready" and status["past"][0]["finish"] == "stop" and status["machine"]["devices"], status
        assert len(status["rates"]["generated"]) == 60


@test
def metrics_are_prometheus_text():
    with Server() as s:
        s.json(CHAT, user("hello"))
        s.post(CHAT, {})
        response = s.get("/metrics")
        assert response.getheader("Content-Type").startswith("text/plain; version=0.0.4")
        values = {}
        for line in response.body.decode().splitlines():
            if line.startswith("#"):
                assert re.fullmatch(r"# (HELP strata_\w+ .+|TYPE strata_\w+ (counter|gauge|histogram))", line), line
                continue
            name, value = re.fullmatch(r"(strata_\w+(?:\{[^}]*\})?) (\S+)", line).groups()
            values[name] = float(value)
        assert values['strata_requests_total{route="/v1/chat/completions",code="200"}'] == 1
        assert values['strata_requests_total{route="/v1/chat/completions",code="400"}'] == 1
        for histogram in ("first_token_seconds", "token_seconds", "queue_wait_seconds", "request_seconds"):
            buckets = [v for n, v in values.items() if n.startswith(f"strata_{histogram}_bucket")]
            assert len(buckets) == 15 and buckets == sorted(buckets) and buckets[-1] == values[f"strata_{histogram}_count"], histogram
        assert values["strata_generated_tokens_total"] == len(HELLO.encode()) and values["strata_ready"] == 1


@test
def unknown_paths_and_methods_are_told_apart():
    with Server() as s:
        for method, path, status in [("GET", "/nothing", 404), ("POST", "/v1/models", 405), ("GET", CHAT, 405), ("DELETE", "/v1/models", 405),
                                     ("PUT", "/", 404), ("GET", "/../etc/passwd", 404), ("GET", "/%2e%2e/x", 404)]:
            response = s.request(method, path, b"{}", {"Content-Type": "application/json"})
            assert response.status == status and json.loads(response.body)["error"]["message"], (method, path, response.status)
        assert json.loads(s.get(MESSAGES).body)["type"] == "error", "the shape follows the path"
        head = s.request("HEAD", "/health")
        assert head.status == 200 and head.body == b""


@test
def a_body_over_the_limit_is_413_in_each_shape():
    with Server(args=["--max-body", "10K"]) as s:
        response = s.post(CHAT, user("x" * 11000))
        assert response.status == 413 and json.loads(response.body)["error"]["type"] == "request_too_large"
        value = json.loads(s.post(MESSAGES, claude("x" * 11000)).body)
        assert value["error"]["type"] == "request_too_large", value
        assert s.post(CHAT, user("x" * 500000)).status == 413
        assert s.json(CHAT, user("hello"))["choices"]


@test
def a_key_is_needed_where_one_was_set():
    with Server(args=["--api-key", "sesame", "--api-key", "second key"]) as s:
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "sesame"}, {"x-api-key": "sesam"}, {"x-api-key": "sesamee"},
                        {"x-api-key": ""}, {"Authorization": "Bearer "}):
            for response in (s.post(CHAT, user("hello"), headers), s.get("/v1/status", headers), s.get("/metrics", headers)):
                assert response.status == 401 and json.loads(response.body)["error"]["type"] == "authentication_error", headers
                assert response.getheader("WWW-Authenticate") == "Bearer"
            assert json.loads(s.post(MESSAGES, claude("hello"), headers).body)["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer sesame"}, {"authorization": "bearer sesame"}, {"x-api-key": "sesame"}, {"X-Api-Key": "second key"}):
            assert s.json(CHAT, user("hello"), headers)["choices"]
        assert s.get("/health").status == 200 and s.get("/").status == 200
        assert s.post(CHAT, user("hello"), {"x-api-key": "sesame", "Host": "evil.example", "Origin": "https://evil.example"}).status == 200


@test
def keys_come_from_a_file_too():
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"strata-keys-{os.getpid()}")
    with open(path, "w", encoding="ascii") as f:
        f.write("# keys\n\nalpha\r\nbeta\n")
    try:
        with Server(args=["--api-key-file", path]) as s:
            assert s.post(CHAT, user("hello"), {"x-api-key": "alpha"}).status == 200
            assert s.post(CHAT, user("hello"), {"x-api-key": "beta"}).status == 200
            assert s.post(CHAT, user("hello"), {"x-api-key": "# keys"}).status == 401
    finally:
        os.unlink(path)


@test
def without_a_key_other_names_origins_and_forms_are_refused():
    with Server(args=["--host-name", "workshop"]) as s:
        def status(**headers):
            return s.post(CHAT, user("hello"), {k.replace("_", "-"): v for k, v in headers.items()}).status
        own = f"127.0.0.1:{s.port}"
        for host in (own, f"localhost:{s.port}", "[::1]:80", "10.0.0.7", "a.localhost", "workshop:1", "WORKSHOP"):
            assert status(Host=host) == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "notlocalhost", "[::1", ""):
            assert status(Host=host) == 403, host
        assert status(Host=own, Origin=f"http://{own}") == 200
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", f"http://localhost:{s.port}"):
            assert status(Host=own, Origin=origin) == 403, origin
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""):
            assert status(Content_Type=kind) == 415, kind
        assert status(Content_Type="application/json; charset=utf-8") == 200
        assert s.get("/", {"Host": "evil.example"}).status == 403


@test
def cors_is_off_unless_an_origin_is_listed():
    with Server() as s:
        response = s.request("OPTIONS", CHAT, headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
        assert response.status == 204 and not response.getheader("Access-Control-Allow-Origin")
    with Server(args=["--cors", "https://app.example"]) as s:
        wanted = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        response = s.request("OPTIONS", CHAT, headers=wanted)
        assert response.getheader("Access-Control-Allow-Origin") == "https://app.example"
        assert response.getheader("Access-Control-Allow-Headers") == "content-type"
        response = s.post(CHAT, user("hello"), {"Origin": "https://app.example"})
        assert response.status == 200 and response.getheader("Access-Control-Allow-Origin") == "https://app.example"
        assert s.post(CHAT, user("hello"), {"Origin": "https://other.example"}).status == 403


def start_stream(s, body, path=CHAT):
    """Sends a request and returns the socket after the first bytes of the answer."""
    data = json.dumps(body).encode()
    sock = s.socket()
    sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    if body.get("stream"):
        assert sock.recv(1)
    return sock


def wait_for(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@test
def a_full_queue_is_429_and_the_queue_is_first_in_first_out():
    with Server(args=["--queue", "3"]) as s:
        first = start_stream(s, user("slow", stream=True))
        threads = []
        for i in range(3):
            threads.append(threading.Thread(target=s.json, args=(CHAT, user("hello"))))
            threads[-1].start()
            wait_for("the request is queued", lambda: len(s.json("/v1/status")["requests"]) == i + 2)
        response = s.post(CHAT, user("hello"))
        assert response.status == 429 and int(response.getheader("Retry-After")) >= 1
        assert json.loads(response.body)["error"]["code"] == "queue_full"
        assert json.loads(s.post(MESSAGES, claude("hello")).body)["error"]["type"] == "rate_limit_error"
        first.close()
        for t in threads:
            t.join()
        done = [p["id"] for p in s.json("/v1/status")["past"]][::-1]
        assert len(done) == 4 and done == sorted(done), done


@test
def several_answers_run_at_once_and_each_client_gets_its_own():
    with Server({**SCRIPT, "parallel": 3}, args=["--queue", "1"]) as s:
        assert s.json("/props")["total_slots"] == 3
        requests = lambda: s.json("/v1/status")["requests"]
        streams = []
        for i in range(3):
            streams.append(start_stream(s, user(f"slow {i}", stream=True)))
            wait_for("it generates", lambda: sum(r["stage"] == "generating" for r in requests()) == i + 1)
        waiting = {}
        thread = threading.Thread(target=lambda: waiting.update(r=s.json(CHAT, user("hello"))))
        thread.start()
        wait_for("the fourth waits", lambda: [r["stage"] for r in requests()] == ["generating"] * 3 + ["waiting"])
        assert s.post(CHAT, user("hello")).status == 429
        assert [(slot["id"], slot["is_processing"]) for slot in s.json("/slots")] == [(0, True), (1, True), (2, True)]
        assert sorted(r["slot"] for r in requests()) == [-1, 0, 1, 2]
        metrics = s.get("/metrics").body.decode()
        assert "strata_running_requests 3" in metrics and "strata_queue_requests 4" in metrics, metrics
        taken = requests()[1]["slot"]
        streams[1].close()
        thread.join()
        assert waiting["r"]["choices"][0]["message"]["content"] == HELLO
        assert s.json("/v1/status")["past"][0]["finish"] == "stop" and s.json("/v1/status")["past"][1]["finish"] == "cancelled"
        assert [slot["id"] for slot in s.json("/slots") if not slot["is_processing"]] == [taken]
        broken = s.post(CHAT, user("break"))
        assert broken.status == 500 and len(requests()) == 2, "a fault of one answer is none of the others"
        for sock in (streams[0], streams[2]):
            data = b""
            while b"data: [DONE]" not in data:
                piece = sock.recv(65536)
                assert piece
                data += piece
            assert data.count(b'"content":') >= 400, data[-300:]
            sock.close()


@test
def a_client_that_goes_frees_the_engine_within_a_token():
    with Server() as s:
        for stream in (True, False):
            sock = start_stream(s, user("slow", stream=stream))
            wait_for("it generates", lambda: any(r["generated_tokens"] > 3 for r in s.json("/v1/status")["requests"]))
            sock.close()
            s.wait_idle()
            past = s.json("/v1/status")["past"][0]
            assert past["finish"] == "cancelled" and past["generated_tokens"] < 1900, past
        reading = start_stream(s, user("long read" + "x" * 2000, stream=True))
        wait_for("it reads", lambda: any(r["stage"] == "reading" and r["prompt_done"] > 0 for r in s.json("/v1/status")["requests"]))
        reading.close()
        s.wait_idle()
        assert s.json("/v1/status")["past"][0]["generated_tokens"] == 0
        running = start_stream(s, user("slow", stream=True))
        waiting = start_stream(s, user("hello"))
        wait_for("it waits", lambda: len(s.json("/v1/status")["requests"]) == 2)
        waiting.close()
        wait_for("the waiting one is dropped", lambda: len(s.json("/v1/status")["requests"]) == 1)
        resetting = start_stream(s, user("hello"))
        wait_for("it waits", lambda: len(s.json("/v1/status")["requests"]) == 2)
        resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        resetting.close()
        wait_for("so is one that resets", lambda: len(s.json("/v1/status")["requests"]) == 1)
        running.close()
        wait_for("all are counted", lambda: "strata_cancelled_total 6" in s.get("/metrics").body.decode())
        assert s.json(CHAT, user("hello"))["choices"]


@test
def streams_show_signs_of_life_and_health_answers_while_a_prompt_is_read():
    with Server(args=["--keepalive", "0.1"]) as s:
        text = "long read" + "x" * 60
        result = {}
        reader = threading.Thread(target=lambda: result.update(r=s.post(CHAT, user(text, stream=True, return_progress=True))))
        reader.start()
        wait_for("it reads", lambda: any(r["stage"] == "reading" for r in s.json("/v1/status")["requests"]))
        assert s.get("/health").status == 200
        reader.join()
        body = result["r"].body.decode()
        assert body.count(": reading\n\n") >= 3 and body.index(": reading") < body.index('"content":"d"')
        progress = [c["prompt_progress"] for c in deltas(body.encode()) if "prompt_progress" in c]
        assert progress[-1]["processed"] == progress[-1]["total"] and progress[0]["processed"] == progress[0]["cache"], progress
        named = [n for n, _ in events(s.post(MESSAGES, claude("long read again" + "y" * 60, stream=True)).body)]
        assert named.count("ping") >= 3, named


@test
def while_loading_health_tells_how_far_it_is():
    with Server({"load_ms": 1500}, wait=False) as s:
        response = s.get("/health")
        value = json.loads(response.body)
        assert response.status == 503 and value["status"] == "loading" and 0 <= value["progress"] < 1 and value["step"], value
        refused = s.post(CHAT, user("hello"))
        assert refused.status == 503 and refused.getheader("Retry-After") and json.loads(refused.body)["error"]["code"] == "loading"
        assert json.loads(s.post(MESSAGES, claude("hello")).body)["error"]["type"] == "overloaded_error"
        assert s.get("/").status == 200 and s.json("/v1/status")["state"] == "loading"
        s.wait_ready()
        assert s.json(CHAT, user("hello"))["choices"]


@test
def a_failing_device_is_an_error_of_that_request_only():
    with Server() as s:
        response = s.post(CHAT, user("break"))
        assert response.status == 500 and "device failed" in json.loads(response.body)["error"]["message"]
        streamed = deltas(s.post(CHAT, user("break", stream=True)).body)
        assert "device failed" in streamed[-1]["error"]["message"] and streamed[0]["choices"], streamed[-1]
        name, data = events(s.post(MESSAGES, claude("break", stream=True)).body)[-1]
        assert name == "error" and json.loads(data)["error"]["type"] == "api_error", (name, data)
        assert s.json(CHAT, user("hello"))["choices"]


@test
def an_answer_that_takes_too_long_ends_as_if_cut():
    with Server(args=["--answer-timeout", "1"]) as s:
        choice = s.json(CHAT, user("slow"))["choices"][0]
        assert choice["finish_reason"] == "length" and 0 < len(choice["message"]["content"]) < 2000


@test
def slow_requests_and_slow_readers_are_cut_off():
    with Server(args=["--request-timeout", "1", "--max-unread", "4K"]) as s:
        slow = s.socket()
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
        slow.settimeout(30)
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                slow.sendall(b"a")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() < end, "a request that never ends is still let in"
        slow.close()
        lazy = s.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        data = json.dumps(user("endless", stream=True)).encode()
        lazy.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        wait_for("the slow reader is cut off", lambda: "strata_slow_readers_total 1" in s.get("/metrics").body.decode())
        s.wait_idle()
        lazy.close()
        assert s.json(CHAT, user("hello"))["choices"]


@test
def bodies_that_arrive_at_once_have_a_common_limit():
    with Server(args=["--max-body", "1M"]) as s:
        before, held = s.resident(), []
        for _ in range(50):
            sock = s.socket()
            sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n" % CHAT.encode())
            try:
                sock.sendall(b" " * 900000)
            except OSError:
                pass
            held.append(sock)
        wait_for("some are cut off", lambda: int(re.search(r"strata_connections_refused_total (\d+)", s.get("/metrics").body.decode())[1]) > 10)
        assert s.sanitized or s.resident() - before < 20 << 20, s.resident() - before
        for sock in held:
            sock.close()
        assert s.json(CHAT, user("hello"))["choices"]


@test
def connections_over_the_limit_get_a_429():
    with Server(args=["--max-connections", "4"]) as s:
        held = [s.socket() for _ in range(4)]
        wait_for("one too many is refused", lambda: b"429" in s.get("/health").body or s.get("/health").status == 429)
        for sock in held:
            sock.close()
        wait_for("room again", lambda: s.get("/health").status == 200)
        assert s.json(CHAT, user("hello"))["choices"]


@test
def a_length_that_no_number_holds_is_refused_at_once():
    with Server() as s:
        for length in (b"9223372036854775808", b"9999999999999999999", b"1" * 60):
            for pieces in ((b"Content-Length: " + length + b"\r\n\r\n{}",), (b"content-", b"length:" + length[:9], length[9:] + b"\r\n", b"\r\n{")):
                sock = s.socket()
                sock.settimeout(20)
                sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % CHAT.encode())
                for piece in pieces:
                    time.sleep(0.02)
                    sock.sendall(piece)
                answer = http.client.HTTPResponse(sock)
                answer.begin()
                assert answer.status == 400 and "Content-Length" in json.loads(answer.read())["error"]["message"], (length, answer.status)
                sock.close()
        sock = s.socket()  # what fits into a number is a matter of its size
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9223372036854775807\r\n\r\n" % CHAT.encode())
        sock.close()
        assert s.json(CHAT, user("hello"))["choices"]


@test
def garbage_and_broken_connections_harm_nobody_else():
    with Server() as s:
        data = json.dumps(user("slow", stream=True)).encode()
        good = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data
        broken = [b"", b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200000, good[:60], good[:-5],
                  good.replace(b"Content-Length: ", b"Content-Length: -"), good.replace(b"Content-Length: ", b"Content-Length: 9999999999999999999"),
                  b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}" % CHAT.encode(),
                  b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(10000)) + b"\r\n", good + good + good]
        for bytes_ in broken:
            for reset in (False, True):
                sock = s.socket()
                try:
                    sock.sendall(bytes_)
                    if reset:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                sock.close()
        s.wait_idle()
        assert s.json(CHAT, user("hello"))["choices"][0]["message"]["content"] == HELLO
        two = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        for _ in range(3):
            two.request("POST", CHAT, json.dumps(user("hello")), {"Content-Type": "application/json"})
            assert json.loads(two.getresponse().read())["choices"], "one connection carries many requests"
        two.close()


@test
def a_chunked_body_is_a_body():
    with Server() as s:
        data = json.dumps(user("hello")).encode()
        connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        connection.request("POST", CHAT, iter([data[:10], data[10:]]), {"Content-Type": "application/json"}, encode_chunked=True)
        assert json.loads(connection.getresponse().read())["choices"]
        connection.close()


@test
def a_stop_ends_streams_with_an_error_and_the_program_with_0():
    s = Server()
    sock = start_stream(s, user("slow", stream=True))
    waiting = {}
    other = threading.Thread(target=lambda: waiting.update(r=s.post(CHAT, user("hello"))))
    other.start()
    wait_for("both are there", lambda: len(s.json("/v1/status")["requests"]) == 2)
    s.process.terminate()
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    other.join()
    assert b"the server is stopping" in data and waiting["r"].status == 503, (data[-300:], waiting["r"].status)
    assert s.process.wait(60) == 0  # stop() would ask a second time, which ends the program at once
    assert s.stop() == 0
    sock.close()


@test
def prompts_are_logged_only_when_asked():
    for args, logged in (([], False), (["--log-prompts"], True)):
        s = Server(args=args)
        s.json(CHAT, user("hello, this is private"))
        s.json(COMPLETION, {"prompt": "hello, this is private"})
        s.stop()
        assert ("private" in "\n".join(s.log)) == logged, s.log
        assert any(CHAT in line for line in s.log), "one line per request"


@test
def the_page_is_served_whole_and_locked_down():
    with Server() as s:
        index = s.get("/")
        policy = index.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy, policy
        text = index.body.decode()
        assert "<script>" not in text and "style=" not in text and "onclick" not in text
        names = re.findall(r'(?:src|href)="(/[^"]+)"', text)
        assert sorted(names) == ["/app.css", "/app.js", "/icon.svg"], names
        size = len(index.body)
        for name in names:
            response = s.get(name)
            size += len(response.body)
            assert response.status == 200 and response.getheader("X-Content-Type-Options") == "nosniff"
            again = s.get(name, {"If-None-Match": response.getheader("ETag")})
            assert again.status == 304 and again.body == b""
            loads = re.findall(rb"(?:url\(|import\(|fetch\()\s*[\"']?https?:", response.body)
            assert not loads, loads
        assert 20000 < size < 300000, size


@test
def options_that_make_no_sense_are_refused_at_start():
    for args in (["--port", "70000"], ["--api-key", ""], ["--api-key-file", "/nonexistent"], ["--temp", "-1"], ["--queue", "many"]):
        try:
            Server(args=args)
        except RuntimeError as e:
            assert "strata" in str(e), e
        else:
            raise AssertionError(f"{args} was accepted")
    with Server() as s:
        try:
            Server(args=["--port", str(s.port)])
        except RuntimeError as e:
            assert "in use" in str(e), e
        else:
            raise AssertionError("two servers on one port")


main()
