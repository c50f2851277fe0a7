"""The official clients against the real program and the demo model: test_demo.py STRATA MODEL."""
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import anthropic  # noqa: E402
import openai  # noqa: E402
from harness import TOOL, Server  # noqa: E402
from tap import main, test  # noqa: E402

GIMP = [{"role": "user", "content": "What is gimp?"}]
SERVER = None


def clients():
    return (openai.OpenAI(base_url=SERVER.url + "/v1", api_key="unused", max_retries=0),
            anthropic.Anthropic(base_url=SERVER.url, api_key="unused", max_retries=0))


@test
def both_clients_get_the_same_words_whole_and_streamed():
    o, a = clients()
    whole = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=24)
    text = whole.choices[0].message.content
    assert "gimp" in text.lower() and whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 24, whole
    stream = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=24, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text
    response = o.responses.create(model="demo", input=GIMP, temperature=0, max_output_tokens=24)
    assert response.output_text == text and response.status == "incomplete" and response.usage.output_tokens == 24, response
    assert "".join(e.delta for e in o.responses.create(model="demo", input=GIMP, temperature=0, max_output_tokens=24, stream=True)
                   if e.type == "response.output_text.delta") == text
    with a.messages.stream(model="demo", max_tokens=24, messages=GIMP, extra_body={"temperature": 0}) as s:
        assert "".join(s.text_stream) == text
        assert s.get_final_message().stop_reason == "max_tokens"


@test
def a_conversation_goes_on_from_what_is_held():
    o, _ = clients()
    first = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=400)
    assert first.choices[0].finish_reason == "stop", first
    talk = GIMP + [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "What is vlc?"}]
    second = o.chat.completions.create(model="demo", messages=talk, temperature=0, max_tokens=8)
    reused = second.usage.prompt_tokens_details.cached_tokens
    assert reused >= first.usage.total_tokens - 1, (first.usage, second.usage)


@test
def log_probabilities_are_those_of_the_greedy_tokens():
    o, _ = clients()
    answer = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=5, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 5 and "".join(e.token for e in entries) == answer.choices[0].message.content
    for e in entries:
        assert e.logprob <= 0 and e.top_logprobs[0].token == e.token and e.top_logprobs[0].logprob >= e.top_logprobs[1].logprob
    banned = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=1, logit_bias={
        str(SERVER.json("/tokenize", {"content": entries[0].token})["tokens"][0]): -100})
    assert banned.choices[0].message.content != entries[0].token


@test
def a_seed_repeats_an_answer():
    o, _ = clients()
    def ask(seed):
        return o.chat.completions.create(model="demo", messages=GIMP, temperature=1.5, seed=seed, max_tokens=12).choices[0].message.content
    assert ask(5) == ask(5)
    assert len({ask(i) for i in range(4)}) > 1


@test
def errors_are_the_clients_own_kinds():
    o, a = clients()
    long = [{"role": "user", "content": "word " * 3000}]
    try:
        o.chat.completions.create(model="demo", messages=long)
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded", e
    else:
        raise AssertionError("a prompt over the context was taken")
    try:
        a.messages.create(model="demo", max_tokens=5, messages=long)
    except anthropic.BadRequestError as e:
        assert "prompt is too long" in str(e), e
    else:
        raise AssertionError("a prompt over the context was taken")


@test
def tools_may_be_sent_along():
    o, a = clients()
    answer = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=8, tools=[{"type": "function", "function": TOOL}])
    assert answer.choices[0].message.content
    assert a.messages.create(model="demo", max_tokens=8, messages=GIMP, tools=[{"name": "f", "input_schema": TOOL["parameters"]}]).content


@test
def closing_a_stream_ends_the_work_and_health_answers_meanwhile():
    o, _ = clients()
    stream = o.chat.completions.create(model="demo", messages=GIMP, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    assert SERVER.get("/health").status == 200
    stream.close()
    SERVER.wait_idle(20)
    past = SERVER.json("/v1/status")["past"][0]
    assert past["finish"] == "cancelled" and past["generated_tokens"] < 500, past


@test
def several_clients_wait_their_turn():
    o, _ = clients()
    texts = []
    def ask():
        texts.append(o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=6).choices[0].message.content)
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(texts) == 6 and len(set(texts)) == 1, texts


@test
def a_schema_holds_whatever_the_model_would_rather_say():
    import json
    import jsonschema
    o, _ = clients()
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "kind": {"enum": ["program", "library"]},
                                               "stars": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["name", "kind", "stars"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "package", "schema": schema}}
    for seed in range(6):
        answer = o.chat.completions.create(model="demo", messages=GIMP, temperature=1.2, seed=seed, max_tokens=300, response_format=form).choices[0]
        assert answer.finish_reason == "stop", answer
        jsonschema.validate(json.loads(answer.message.content), schema)
    tools = [{"type": "function", "function": TOOL}]
    call = o.chat.completions.create(model="demo", messages=GIMP, temperature=0, max_tokens=400, tools=tools, tool_choice="required").choices[0]
    assert call.finish_reason in ("tool_calls", "length"), call
    if call.finish_reason == "tool_calls":
        jsonschema.validate(json.loads(call.message.tool_calls[0].function.arguments), TOOL["parameters"])
    try:
        o.chat.completions.create(model="demo", messages=GIMP, response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "object", "properties": {"a": {"multipleOf": 3}}}}})
    except openai.BadRequestError as why:
        assert 'properties.a: keyword "multipleOf"' in str(why), why
    else:
        raise AssertionError("a keyword was ignored")


if __name__ == "__main__":
    began = time.monotonic()
    with Server(exe=sys.argv[1], args=["serve", "-m", sys.argv[2], "-c", "2048"]) as SERVER:
        print(f"# ready after {time.monotonic() - began:.1f} s")
        main()
