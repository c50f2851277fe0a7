"""The official Python clients of both APIs, as programs use them: stream, tools, errors, cancel."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
import anthropic  # noqa: E402
import openai  # noqa: E402
from harness import SCRIPT, TOOL, Server  # noqa: E402
from tap import main, test  # noqa: E402

HELLO = "Hi **there**, ünïcode 🎉!"
SAY_HELLO = [{"role": "user", "content": "hello"}]


def openai_client(s, key="unused", **more):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0, **more)


def anthropic_client(s, key="unused", **more):
    return anthropic.Anthropic(base_url=s.url, api_key=key, max_retries=0, **more)


@test
def openai_answers_whole_and_streamed():
    with Server() as s:
        client = openai_client(s)
        whole = client.chat.completions.create(model="any", messages=SAY_HELLO, temperature=0, seed=1)
        assert whole.choices[0].message.content == HELLO and whole.choices[0].finish_reason == "stop"
        assert whole.usage.prompt_tokens > 0 and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        stream = client.chat.completions.create(model="any", messages=SAY_HELLO, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == HELLO
        assert chunks[-1].usage.completion_tokens == len(HELLO.encode())
        with client.chat.completions.stream(model="any", messages=SAY_HELLO) as helper:
            for _ in helper:
                pass
            assert helper.get_final_completion().choices[0].message.content == HELLO
        two = client.chat.completions.create(model="any", messages=SAY_HELLO, n=2)
        assert [(c.index, c.message.content) for c in two.choices] == [(0, HELLO), (1, HELLO)]
        with client.chat.completions.stream(model="any", messages=SAY_HELLO, n=2) as helper:
            for _ in helper:
                pass
            assert [c.message.content for c in helper.get_final_completion().choices] == [HELLO, HELLO]
        raw = client.completions.create(model="any", prompt="hello", max_tokens=2, logprobs=1)
        assert raw.choices[0].text == "Hi" and raw.choices[0].logprobs.tokens == ["H", "i"]
        logprobs = client.chat.completions.create(model="any", messages=SAY_HELLO, logprobs=True, top_logprobs=1, max_tokens=1)
        assert logprobs.choices[0].logprobs.content[0].top_logprobs[0].token == "H"
        assert client.models.list().data[0].id == "scripted" and client.models.retrieve("scripted").object == "model"


@test
def openai_sees_errors_as_its_own_kinds():
    with Server({"context": 100, "answers": [{"match": "break", "text": "no good end", "fail_after": 3}]}, ["--api-key", "sesame"]) as s:
        client = openai_client(s, "sesame")
        for make, kind, status in [
            (lambda: openai_client(s, "wrong").models.list(), openai.AuthenticationError, 401),
            (lambda: client.models.retrieve("gravel"), openai.NotFoundError, 404),
            (lambda: client.chat.completions.create(model="m", messages=[]), openai.BadRequestError, 400),
            (lambda: client.chat.completions.create(model="m", messages=SAY_HELLO, n=17), openai.BadRequestError, 400),
            (lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "break"}]), openai.InternalServerError, 500),
        ]:
            try:
                make()
            except kind as e:
                assert e.status_code == status and e.message, e
            else:
                raise AssertionError(f"no {kind.__name__}")
        try:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 200}])
        except openai.BadRequestError as e:
            assert e.code == "context_length_exceeded" and e.param == "messages" and "219" in e.message and "100" in e.message, e
        else:
            raise AssertionError("a prompt over the context was taken")
        try:
            list(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "break"}], stream=True))
        except openai.APIError as e:
            assert "device failed" in e.message, e
        else:
            raise AssertionError("the error in the stream was not seen")


@test
def openai_is_told_to_wait_when_the_queue_is_full():
    with Server(args=["--queue", "0"]) as s:
        client = openai_client(s)
        running = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "slow"}], stream=True)
        next(iter(running))
        try:
            client.chat.completions.create(model="m", messages=SAY_HELLO)
        except openai.RateLimitError as e:
            assert e.response.headers["retry-after"] and e.code == "queue_full", e
        else:
            raise AssertionError("no 429")
        running.close()
        s.wait_idle()
        assert client.chat.completions.create(model="m", messages=SAY_HELLO).choices[0].message.content == HELLO


@test
def closing_a_stream_ends_the_work():
    with Server() as s:
        slow = [{"role": "user", "content": "slow"}]
        stream = openai_client(s).chat.completions.create(model="m", messages=slow, stream=True)
        for i, _ in enumerate(stream):
            if i == 5:
                break
        stream.close()
        s.wait_idle()
        with anthropic_client(s).messages.stream(model="m", max_tokens=4000, messages=slow) as stream:
            for i, _ in enumerate(stream.text_stream):
                if i == 5:
                    break
        s.wait_idle()
        for past in s.json("/v1/status")["past"][:2]:
            assert past["finish"] == "cancelled" and past["generated_tokens"] < 1900, past


@test
def anthropic_answers_whole_and_streamed():
    with Server() as s:
        client = anthropic_client(s)
        whole = client.messages.create(model="any", max_tokens=100, messages=SAY_HELLO, system="be kind", extra_body={"temperature": 0})
        assert whole.content[0].text == HELLO and whole.stop_reason == "end_turn" and whole.usage.output_tokens == len(HELLO.encode())
        with client.messages.stream(model="any", max_tokens=100, messages=SAY_HELLO) as stream:
            assert "".join(stream.text_stream) == HELLO
            assert stream.get_final_message().usage.output_tokens == len(HELLO.encode())
        stop = client.messages.create(model="any", max_tokens=100, messages=SAY_HELLO, stop_sequences=["there"])
        assert stop.stop_reason == "stop_sequence" and stop.stop_sequence == "there"
        beta = client.beta.messages.create(model="any", max_tokens=100, messages=SAY_HELLO)
        assert beta.content[0].text == HELLO
        count = client.messages.count_tokens(model="any", messages=SAY_HELLO).input_tokens
        usage = client.messages.create(model="any", max_tokens=1, messages=SAY_HELLO).usage
        assert count == usage.input_tokens + usage.cache_read_input_tokens, usage
        assert client.models.list().data[0].id == "scripted" and client.models.retrieve("scripted").display_name == "scripted"


@test
def openai_runs_a_tool_and_goes_on():
    import json
    with Server() as s:
        client = openai_client(s)
        talk = [{"role": "user", "content": "weather please"}]
        tools = [{"type": "function", "function": TOOL}]
        answer = client.chat.completions.create(model="m", messages=talk, tools=tools, tool_choice="auto").choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.reasoning_content == "A tool helps."
        call = answer.message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}
        talk += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "noon in Paris"}]
        final = client.chat.completions.create(model="m", messages=talk, tools=tools)
        assert final.choices[0].message.content == "It is sunny in Paris."
        with client.chat.completions.stream(model="m", messages=talk[:1], tools=tools) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        assert done[0].name == "get_weather" and json.loads(done[0].arguments)["city"] == "Paris"


@test
def openai_responses_are_whole_streamed_and_of_a_form():
    import pydantic

    class Place(pydantic.BaseModel):
        city: str
        days: int
    script = {"answers": [{"match": "json", "text": 'Sure: {"city": "Bonn", "days": 3} I hope this helps.'}, *SCRIPT["answers"]]}
    with Server(script) as s:
        client = openai_client(s)
        whole = client.responses.create(model="any", input="hello", instructions="be kind", temperature=0, store=False)
        assert whole.output_text == HELLO and whole.status == "completed" and whole.usage.output_tokens == len(HELLO.encode()), whole
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens and whole.usage.input_tokens_details.cached_tokens == 0
        parts = list(client.responses.create(model="any", input="hello", stream=True))
        assert "".join(e.delta for e in parts if e.type == "response.output_text.delta") == HELLO and parts[-1].response.output_text == HELLO
        assert [e.sequence_number for e in parts] == list(range(len(parts)))
        with client.responses.stream(model="any", input="think") as stream:
            kinds = {e.type for e in stream}
            final = stream.get_final_response()
        assert "response.reasoning_text.delta" in kinds and [item.type for item in final.output] == ["reasoning", "message"], kinds
        assert final.output_text == "There are three."
        parsed = client.responses.parse(model="any", input="json", text_format=Place)
        assert parsed.output_parsed == Place(city="Bonn", days=3), parsed
        cut = client.responses.create(model="any", input="hello", max_output_tokens=2)
        assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens" and cut.output_text == "Hi"
        try:
            client.responses.create(model="any", input="hello", previous_response_id=whole.id)
        except openai.BadRequestError as e:
            assert e.param == "previous_response_id", e
        else:
            raise AssertionError("a response that was not kept was gone on with")


@test
def openai_responses_run_a_tool_and_go_on():
    import json
    with Server() as s:
        client = openai_client(s)
        tools = [{"type": "function", **TOOL}]
        talk = [{"role": "user", "content": "weather please"}]
        first = client.responses.create(model="m", input=talk, tools=tools, include=["reasoning.encrypted_content"], store=False)
        assert [item.type for item in first.output] == ["reasoning", "function_call"], first.output
        call = first.output[1]
        assert json.loads(call.arguments) == {"city": "Paris", "days": 3} and call.name == "get_weather"
        with client.responses.stream(model="m", input=talk, tools=tools) as stream:
            done = [e for e in stream if e.type == "response.function_call_arguments.done"]
        assert json.loads(done[0].arguments)["city"] == "Paris"
        talk += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "noon in Paris"}]
        assert client.responses.create(model="m", input=talk, tools=tools).output_text == "It is sunny in Paris."


@test
def an_engine_that_fails_is_seen_in_a_response():
    with Server() as s:
        client = openai_client(s)
        try:
            client.responses.create(model="m", input="break")
        except openai.InternalServerError as e:
            assert "device failed" in e.message, e
        else:
            raise AssertionError("no error")
        last = list(client.responses.create(model="m", input="break", stream=True))[-1]
        assert last.type == "response.failed" and "device failed" in last.response.error.message, last


@test
def anthropic_thinks_runs_a_tool_and_goes_on():
    with Server() as s:
        client = anthropic_client(s)
        talk = [{"role": "user", "content": "weather please"}]
        tools = [{"name": "get_weather", "description": "weather", "input_schema": TOOL["parameters"]}]
        more = {"model": "m", "max_tokens": 2000, "tools": tools, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        answer = client.messages.create(messages=talk, **more)
        assert answer.stop_reason == "tool_use" and [b.type for b in answer.content] == ["thinking", "tool_use"]
        assert answer.content[0].thinking == "A tool helps." and answer.content[1].input == {"city": "Paris", "days": 3}
        with client.messages.stream(messages=talk, **more) as stream:
            streamed = stream.get_final_message()
        assert [b.type for b in streamed.content] == ["thinking", "tool_use"] and streamed.content[1].input == answer.content[1].input
        result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "noon in Paris"}
        talk += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        assert client.messages.create(messages=talk, **more).content[0].text == "It is sunny in Paris."


@test
def anthropic_sees_errors_as_its_own_kinds():
    script = {"context": 100, "answers": [{"match": "break", "text": "no good end", "fail_after": 3}]}
    with Server(script, ["--api-key", "sesame", "--max-body", "4K"]) as s:
        client = anthropic_client(s, "sesame")

        def ask(text, c=client):
            return c.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": text}])
        for make, kind, status, words in [
            (lambda: ask("hello", anthropic_client(s, "wrong")), anthropic.AuthenticationError, 401, "API key"),
            (lambda: ask("x" * 200), anthropic.BadRequestError, 400, "prompt is too long: 219 tokens > 100 maximum"),
            (lambda: ask("x" * 5000), anthropic.APIStatusError, 413, "larger than"),
            (lambda: ask("break"), anthropic.InternalServerError, 500, "device failed"),
        ]:
            try:
                make()
            except kind as e:
                assert e.status_code == status and words in str(e), e
                assert e.body["type"] == "error" and e.body["error"]["message"], e.body
            else:
                raise AssertionError(f"no {kind.__name__}")
        try:
            with client.messages.stream(model="m", max_tokens=10, messages=[{"role": "user", "content": "break"}]) as stream:
                stream.until_done()
        except anthropic.APIStatusError as e:
            assert "device failed" in str(e), e
        else:
            raise AssertionError("the error in the stream was not seen")


@test
def bearer_tokens_work_for_both():
    with Server(args=["--api-key", "sesame"]) as s:
        client = anthropic.Anthropic(base_url=s.url, auth_token="sesame", max_retries=0)
        assert client.messages.create(model="m", max_tokens=100, messages=SAY_HELLO).content[0].text == HELLO
        assert openai_client(s, "sesame").chat.completions.create(model="m", messages=SAY_HELLO).choices[0].message.content == HELLO


@test
def many_clients_at_once_are_all_served():
    import concurrent.futures
    with Server() as s:
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            def one(i):
                if i % 2:
                    return openai_client(s).chat.completions.create(model="m", messages=SAY_HELLO).choices[0].message.content
                with anthropic_client(s).messages.stream(model="m", max_tokens=99, messages=SAY_HELLO) as stream:
                    return "".join(stream.text_stream)
            assert list(pool.map(one, range(32))) == [HELLO] * 32
        print(f"# {time.monotonic() - begin:.1f} s")


main()
