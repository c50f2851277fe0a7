"""POST /v1/responses over plain HTTP: items, events and their numbers, what is refused and how."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
os.environ["SCRIPTED_ARGS"] = " ".join(sys.argv[2:])
from harness import CALL, SCRIPT, TOOL, Server, events  # noqa: E402
from tap import main, test  # noqa: E402

RESPONSES = "/v1/responses"
HELLO = "Hi **there**, ünïcode 🎉!"
WEATHER = {"type": "function", **TOOL}


def asked(input_, **more):
    return {"input": input_, **more}


def stream(s, body):
    """The events of a stream, checked: names, numbers from 0 on without a gap, one end, which is the last."""
    response = s.post(RESPONSES, {**body, "stream": True})
    assert response.status == 200 and response.getheader("Content-Type").startswith("text/event-stream"), response.body
    named = [(name, json.loads(data)) for name, data in events(response.body)]
    assert all(name == e["type"] for name, e in named), named
    assert [e["sequence_number"] for _, e in named] == list(range(len(named))), named
    ends = [name for name, _ in named if name in ("response.completed", "response.incomplete", "response.failed")]
    assert ends == [named[-1][0]], named[-1]
    assert [name for name, _ in named[:2]] == ["response.created", "response.in_progress"]
    return [e for _, e in named]


def rebuilt(list_):
    """The output that the deltas add up to, item by item; every event must belong to the item that is open."""
    items, open_ = [], None
    for e in list_[2:-1]:
        kind = e["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_ is None and e["output_index"] == len(items), e
            open_ = {"id": e["item"]["id"], "type": e["item"]["type"], "text": "", "parts": 0}
            assert e["item"]["status"] == "in_progress"
            continue
        assert open_ and e["output_index"] == len(items), e
        if kind == "output_item.done":
            assert e["item"]["id"] == open_["id"], e
            text = e["item"]["arguments"] if open_["type"] == "function_call" else e["item"]["content"][0]["text"]
            assert text == open_["text"], (e, open_)
            assert open_["parts"] == (0 if open_["type"] == "function_call" else 2), open_
            items.append(e["item"])
            open_ = None
            continue
        assert e["item_id"] == open_["id"], e
        if kind.endswith(".delta"):
            open_["text"] += e["delta"]
        elif kind == "function_call_arguments.done":
            assert e["arguments"] == open_["text"]
        elif kind.startswith("content_part."):
            open_["parts"] += 1
            assert e["part"]["text"] == ("" if kind.endswith("added") else open_["text"])
        else:
            assert kind in ("output_text.done", "reasoning_text.done") and e["text"] == open_["text"], e
    assert open_ is None
    return items


def plain(items):
    """Items without the identities, which differ from request to request."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


@test
def whole_and_streamed_responses_have_the_same_items():
    with Server() as s:
        for text, more, kinds in [("hello", {}, ["message"]), ("think", {}, ["reasoning", "message"]),
                                  ("weather", {"tools": [WEATHER]}, ["reasoning", "function_call"]),
                                  ("weather in two", {"tools": [WEATHER]}, ["message", "function_call", "function_call"])]:
            whole = s.json(RESPONSES, asked(text, **more))
            assert whole["object"] == "response" and whole["status"] == "completed" and whole["error"] is None, whole
            assert [item["type"] for item in whole["output"]] == kinds, whole["output"]
            assert all(item["status"] == "completed" for item in whole["output"])
            list_ = stream(s, asked(text, **more))
            assert list_[0]["response"]["status"] == "in_progress" and list_[0]["response"]["output"] == []
            final = list_[-1]["response"]
            assert final["status"] == "completed" and rebuilt(list_) == final["output"], list_[-1]
            assert plain(final["output"]) == plain(whole["output"])
            ids = [item["id"] for item in final["output"]] + [i["call_id"] for i in final["output"] if i["type"] == "function_call"]
            assert len(set(ids)) == len(ids), ids
        thought = s.json(RESPONSES, asked("think"))
        assert thought["output"][0]["content"] == [{"type": "reasoning_text", "text": "First I count the layers."}], thought
        assert thought["output"][1]["content"][0]["text"] == "There are three." and thought["usage"]["output_tokens_details"]["reasoning_tokens"] > 10
        hello = s.json(RESPONSES, asked("hello"))
        assert hello["output"][0]["content"] == [{"type": "output_text", "text": HELLO, "annotations": [], "logprobs": []}]
        usage = hello["usage"]
        assert usage["output_tokens"] == len(HELLO.encode()) and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@test
def the_request_is_repeated_in_the_response():
    with Server() as s:
        plain_one = s.json(RESPONSES, asked("hello"))
        assert plain_one["tools"] == [] and plain_one["tool_choice"] == "auto" and plain_one["instructions"] is None and plain_one["metadata"] == {}
        assert plain_one["text"] == {"format": {"type": "text"}} and plain_one["parallel_tool_calls"] is True and plain_one["store"] is False
        more = {"instructions": "be brief", "metadata": {"a": "b"}, "tools": [WEATHER], "tool_choice": "none", "temperature": 0.7, "top_p": 0.9,
                "parallel_tool_calls": False, "max_output_tokens": 500, "reasoning": {"effort": "low"}, "user": "me", "store": True}
        whole = s.json(RESPONSES, asked("hello", **more))
        for name, value in {**more, "store": False}.items():
            assert whole[name] == value, (name, whole[name])


@test
def a_limit_makes_it_incomplete():
    with Server(args=["--keepalive", "0.1"]) as s:
        for text, tools, kinds in [("hello", [], ["message"]), ("weather in two", [WEATHER], ["message", "function_call"])]:
            body = asked(text, max_output_tokens=5 if not tools else 70, tools=tools)
            list_ = stream(s, body)
            final = list_[-1]["response"]
            assert list_[-1]["type"] == "response.incomplete" and final["incomplete_details"] == {"reason": "max_output_tokens"}
            assert [i["type"] for i in final["output"]] == kinds and final["output"][-1]["status"] == "incomplete", final["output"]
            assert rebuilt(list_) == final["output"] and final["usage"]["output_tokens"] == body["max_output_tokens"]
            whole = s.json(RESPONSES, body)
            assert whole["status"] == "incomplete" and plain(whole["output"]) == plain(final["output"])
        body = s.post(RESPONSES, asked("long read" + "x" * 60, stream=True)).body
        assert body.count(b": reading\n\n") >= 3, body


@test
def items_become_the_conversation_that_a_chat_request_would_be():
    items = [{"role": "user", "content": "one"}, {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "late"}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}]},
             {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
             {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "let me look", "annotations": []}]},
             {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"},
             {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"},
             {"type": "function_call_output", "call_id": "c1", "output": "sun"},
             {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
             {"type": "message", "role": "assistant", "content": "done"}, {"type": "message", "role": "assistant", "content": "twice"}]
    call = lambda id_, city: {"id": id_, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "one"}, {"role": "developer", "content": "late"},
            {"role": "user", "content": "two\nthree"},
            {"role": "assistant", "content": "let me look", "reasoning_content": "hm", "tool_calls": [call("c1", "Paris"), call("c2", "Rome")]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"}, {"role": "tool", "tool_call_id": "c2", "content": "rain"},
            {"role": "assistant", "content": "done"}, {"role": "assistant", "content": "twice"}]
    dump = "{%- for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson if tools }}{{ enable_thinking }}{{ reasoning_effort }}"
    with Server({"template": dump, "context": 8192, "answers": []}) as s:  # without a script the prompt itself is the answer
        tools = [{k: v for k, v in WEATHER.items() if k != "type"}]
        want = s.json("/apply-template", {"messages": chat, "tools": [{"type": "function", "function": t} for t in tools], "reasoning_effort": "low"})["prompt"]
        got = s.json(RESPONSES, {"instructions": "be kind", "input": items, "tools": [WEATHER], "reasoning": {"effort": "low"}})
        assert got["usage"]["input_tokens"] == len(want.encode()), (got["usage"], want)
        sent = s.json("/v1/completions", {"prompt": want, "parse_special": False, "max_tokens": 1})
        assert sent["usage"]["prompt_tokens_details"]["cached_tokens"] >= got["usage"]["input_tokens"] - 1, "the very same tokens"
        off = s.json("/apply-template", {"messages": chat[1:2], "reasoning_effort": "none"})["prompt"]
        assert s.json(RESPONSES, asked("one", reasoning={"effort": "none"}))["usage"]["input_tokens"] == len(off.encode())


@test
def thoughts_come_back_the_way_a_client_keeps_them():
    dump = "{%- for m in messages %}{{ m.reasoning_content if m.reasoning_content is defined else '-' }}|{% endfor %}"
    with Server() as s:
        sealed = s.json(RESPONSES, asked("think", include=["reasoning.encrypted_content"]))["output"][0]
        assert sealed["encrypted_content"].endswith("First I count the layers.") and s.json(RESPONSES, asked("think"))["output"][0]["encrypted_content"] is None
    end = {"role": "user", "content": "b"}
    with Server({"template": dump}) as s:
        count = lambda item: s.json(RESPONSES, {"input": [item, {"role": "assistant", "content": "a"}, end]})["usage"]["input_tokens"]
        thought = "First I count the layers."
        want = len(thought) + len("|-|")
        assert count({**sealed, "content": None}) == count({**sealed, "encrypted_content": None}) == count(sealed) == want
        assert count({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}], "encrypted_content": "gAAAABforeign"}) == want
        assert count({"type": "reasoning", "summary": []}) == len("-|-|"), "nothing to read is no thought"


@test
def what_was_read_is_not_read_again():
    with Server() as s:
        first = s.json(RESPONSES, asked("hello"))
        talk = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "hello again"}]
        second = s.json(RESPONSES, {"input": talk})
        assert second["usage"]["input_tokens_details"]["cached_tokens"] == first["usage"]["total_tokens"], (first["usage"], second["usage"])


@test
def form_and_calls_are_enforced():
    script = {"answers": [{"match": "json", "text": 'Sure: {"city": "Bonn", "days": 3, "sky": "blue"} I hope this helps.'},
                          {"match": "demand", "text": 'Well, <tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'},
                          {"match": "call", "text": "Well, " + CALL.format("get_weather", "Rome") + CALL.format("get_weather", "Bonn")}]}
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"], "additionalProperties": False}
    text = lambda r: r["output"][-1]["content"][0]["text"]
    with Server(script) as s:
        named = s.json(RESPONSES, asked("json", text={"format": {"type": "json_schema", "name": "place", "strict": True, "schema": schema}}))
        assert json.loads(text(named)) == {"city": "Bonn", "days": 3}, named
        loose = s.json(RESPONSES, asked("json", text={"format": {"type": "json_object"}, "verbosity": "low"}))
        assert json.loads(text(loose)) == {"city": "Bonn", "days": 3, "sky": "blue"}, loose
        tools = [WEATHER, {"type": "function", "name": "other"}]
        for choice in ("required", {"type": "function", "name": "get_weather"}):
            r = s.json(RESPONSES, asked("demand", tools=tools, tool_choice=choice))
            assert [(i["type"], i["name"]) for i in r["output"]] == [("function_call", "get_weather")], r["output"]
            assert json.loads(r["output"][0]["arguments"]) == {"city": "Rome", "days": 2}
        one = s.json(RESPONSES, asked("call", tools=tools, parallel_tool_calls=False))
        assert [i["type"] for i in one["output"]] == ["message", "function_call"] and one["status"] == "completed", one
        none = s.json(RESPONSES, asked("call", tools=tools, tool_choice="none"))
        assert [i["type"] for i in none["output"]] == ["message"] and "<tool_call>" in text(none), none


@test
def what_cannot_be_done_is_refused_by_name():
    item = lambda **more: {"input": [more]}
    cases = [
        ({}, "input"), (asked(5), "input"), (asked([]), "input"), (asked([1]), "input[0]"), (item(role="robot", content="x"), "input[0].role"),
        (item(content="x"), "input[0].role"), (item(role="user"), "input[0].content"), (item(role="user", content=[{"type": "input_text"}]), "input[0].content[0].text"),
        (item(role="user", content=[{"type": "input_image", "image_url": "data:"}]), "input[0].content[0]"),
        (item(role="user", content=[{"type": "input_file", "file_id": "f"}]), "input[0].content[0]"), (item(type=1), "input[0].type"),
        (item(type="item_reference", id="msg_1"), "input[0].type"), (item(type="web_search_call", id="ws_1"), "input[0].type"),
        (item(type="function_call", name="f", arguments="{}"), "input[0].call_id"), (item(type="function_call", call_id="c", arguments="{}"), "input[0].name"),
        (item(type="function_call", call_id="c", name="f"), "input[0].arguments"), (item(type="function_call_output", output="x"), "input[0].call_id"),
        (item(type="function_call_output", call_id="c"), "input[0].output"), (item(type="reasoning", content=[{}]), "input[0].content[0].text"),
        (item(type="reasoning", summary=5), "input[0].summary"), (item(type="reasoning", summary=[]), "input"),
        (asked("x", previous_response_id="resp_1"), "previous_response_id"), (asked("x", conversation="conv_1"), "conversation"),
        (asked("x", prompt={"id": "p"}), "prompt"), (asked("x", background=True), "background"), (asked("x", truncation="auto"), "truncation"),
        (asked("x", include=["web_search_call.results"]), "include[0]"), (asked("x", include=["reasoning.encrypted_content", "message.output_text.logprobs"]), "include[1]"),
        (asked("x", include="all"), "include"), (asked("x", top_logprobs=2), "top_logprobs"), (asked("x", store="no"), "store"),
        (asked("x", moderation={"model": "m"}), "moderation"), (asked("x", context_management=[{"type": "compaction"}]), "context_management"),
        (asked("x", tools=[{"type": "web_search"}]), "tools[0].type"), (asked("x", tools=[WEATHER, {"type": "mcp", "server_label": "m"}]), "tools[1].type"),
        (asked("x", tools=[{"type": "custom", "name": "c"}]), "tools[0].type"), (asked("x", tools=[{"name": "f"}]), "tools[0].type"),
        (asked("x", tools=[{"type": "function"}]), "tools[0].name"), (asked("x", tools=[{"type": "function", "name": "f", "parameters": 1}]), "tools[0].parameters"),
        (asked("x", tools=[{"type": "function", "name": ""}]), "tools[0].name"), (asked("x", tools=[5]), "tools[0]"),
        (asked("x", tool_choice="required"), "tool_choice"), (asked("x", tools=[WEATHER], tool_choice={"type": "function", "name": "g"}), "tool_choice"),
        (asked("x", tools=[WEATHER], tool_choice={"type": "web_search"}), "tool_choice"), (asked("x", tools=[WEATHER], tool_choice="perhaps"), "tool_choice"),
        (asked("x", text={"format": {"type": "grammar"}}), "text.format.type"), (asked("x", text={"format": {"type": "json_schema"}}), "text.format.schema"),
        (asked("x", text={"format": {"type": "json_schema", "schema": {"properties": {"a": {"uniqueItems": True}}}}}), "text.format.schema"),
        (asked("x", tools=[WEATHER], tool_choice="required", text={"format": {"type": "json_schema", "schema": {"uniqueItems": True}}}), "text.format.schema"),
        (asked("x", text=5), "text"), (asked("x", reasoning={"effort": "huge"}), "reasoning.effort"), (asked("x", instructions=[1]), "instructions"),
        (asked("x", max_output_tokens=0), "max_output_tokens"), (asked("x", temperature=-1), "temperature"), (asked("x", stream="yes"), "stream"),
    ]
    with Server({**SCRIPT, "context": 200}) as s:
        for body, param in cases:
            response = s.post(RESPONSES, body)
            error = json.loads(response.body)["error"]
            assert response.status == 400 and error["type"] == "invalid_request_error", (body, response.status, response.body)
            assert error["param"] == param and error["message"], (body, error)
        long = json.loads(s.post(RESPONSES, asked("x" * 300)).body)["error"]
        assert long["code"] == "context_length_exceeded" and long["param"] == "input" and "200" in long["message"], long
        fine = dict(previous_response_id=None, conversation=None, background=False, store=True, truncation="disabled", include=[], top_logprobs=0, service_tier="auto",
                    stream_options={"include_obfuscation": False}, max_tool_calls=3, prompt_cache_key="k", safety_identifier="me", metadata=None, tools=None)
        assert s.json(RESPONSES, asked("hello", **fine))["output"][0]["content"][0]["text"] == HELLO
        assert s.get(RESPONSES).status == 405 and s.get(RESPONSES + "/resp_1").status == 404


@test
def an_engine_that_fails_ends_the_response():
    with Server() as s:
        whole = s.post(RESPONSES, asked("break"))
        assert whole.status == 500 and "device failed" in json.loads(whole.body)["error"]["message"]
        list_ = stream(s, asked("break"))
        final = list_[-1]["response"]
        assert list_[-1]["type"] == "response.failed" and final["status"] == "failed", list_[-1]
        assert final["error"]["code"] == "server_error" and "device failed" in final["error"]["message"], final
        assert any(e["type"] == "response.output_text.delta" for e in list_)
        assert s.json(RESPONSES, asked("hello"))["status"] == "completed"


main()
