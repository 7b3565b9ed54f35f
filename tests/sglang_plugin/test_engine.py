"""DDTREE inside a real SGLang: its scheduler, radix cache, HTTP API and workers, on this machine's CPU in float32.

The reference is transformers (laws.py). Statistical tests have a false-alarm level of 1e-6 each, with fixed seeds.
"""

import json
import threading
import time

import pytest

from harness.engines.sglang_server import DIRECT
from tests.sglang_plugin.laws import p_value
from tests.sglang_plugin.pair import BLOCK_SIZE, EOS, VOCAB

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 4], [4, 5, 6, 7, 8, 9, 10, 11] * 3, [7]]
LENGTH = 48
FALSE_ALARM = 1e-6


def acceptance(answers) -> float:
    meta = [answer["meta_info"] for answer in answers]
    return sum(m["completion_tokens"] - 1 for m in meta) / sum(m["spec_verify_ct"] for m in meta)


@pytest.mark.parametrize("mode", ["tree", "kernel", "ranks"])
@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_is_the_targets_argmax(servers, law, mode, batch):
    answers = servers[mode].generate(PROMPTS[:batch], temperature=0, max_new_tokens=LENGTH)
    assert [a["output_ids"] for a in answers] == [law.greedy(prompt, LENGTH) for prompt in PROMPTS[:batch]]
    assert acceptance(answers) > 1.2  # trees were walked


def test_rows_left_behind_are_noticed(servers, law):
    """Negative control of the commit: without it the text goes wrong, so the test above sees a wrong commit."""
    broken = servers["broken"].ids(PROMPTS, temperature=0, max_new_tokens=LENGTH)
    assert broken != [law.greedy(prompt, LENGTH) for prompt in PROMPTS]


SETTINGS = [dict(), dict(temperature=0.6), dict(min_p=0.3), dict(top_k=4, top_p=0.8), dict(temperature=1.5, top_p=0.7)]


@pytest.mark.parametrize("mode", ["tree", "kernel"])
def test_mixed_settings_in_one_batch_each_keep_their_law(servers, law, mode):
    """Three tokens a request, so prefill's token, a first and a second round or path place. 500 requests a setting."""
    asked = [(dict(temperature=1.0) | setting, seed) for seed in range(500) for setting in SETTINGS]
    params = [setting | dict(max_new_tokens=3, sampling_seed=1 + 10007 * seed) for setting, seed in asked]
    answers = servers[mode].generate([PROMPTS[0]] * len(asked), each=params)
    assert acceptance([a for a in answers if a["meta_info"]["spec_verify_ct"]]) > 1.2
    for place, setting in enumerate(SETTINGS):
        seen = [tuple(answer["output_ids"]) for answer in answers[place :: len(SETTINGS)]]
        expected = law.joint(PROMPTS[0], 3, **(dict(temperature=1.0) | setting))
        assert p_value(expected, seen) > FALSE_ALARM, setting
        # Negative control: the same texts do not pass for another temperature's.
        other = law.joint(PROMPTS[0], 3, **(setting | dict(temperature=setting.get("temperature", 1.0) * 0.7)))
        assert p_value(other, seen) < FALSE_ALARM, setting


def test_two_ranks_keep_the_law_and_draw_as_one(servers, law):
    """Tree and draws agree over the ranks, and with a server of one rank, token for token."""
    asked = dict(each=[dict(temperature=1, max_new_tokens=3, sampling_seed=7 + seed) for seed in range(400)])
    texts = servers["ranks"].ids([PROMPTS[0]] * 400, **asked)
    assert p_value(law.joint(PROMPTS[0], 3), [tuple(text) for text in texts]) > FALSE_ALARM
    assert texts == servers["tree"].ids([PROMPTS[0]] * 400, **asked)


def test_the_seed_decides_and_the_batch_does_not(tree):
    alone = [tree.one(prompt, temperature=1, max_new_tokens=LENGTH, sampling_seed=2**62 + 9) for prompt in PROMPTS]
    together = tree.generate(PROMPTS, temperature=1, max_new_tokens=LENGTH, sampling_seed=2**62 + 9)
    assert [a["output_ids"] for a in alone] == [a["output_ids"] for a in together]
    other = tree.ids(PROMPTS, temperature=1, max_new_tokens=LENGTH, sampling_seed=10)
    assert all(a["output_ids"] != b for a, b in zip(alone, other, strict=True))


def test_requests_without_a_seed_differ(tree):
    texts = tree.ids([PROMPTS[0]] * 8, temperature=1, max_new_tokens=16)
    assert len({tuple(text) for text in texts}) == 8


def test_only_the_vocabulary_comes_out(tree):
    texts = tree.ids(PROMPTS * 8, temperature=3, max_new_tokens=64)
    assert {token for text in texts for token in text} == set(range(VOCAB))  # the mask id and id 0 among them


@pytest.mark.parametrize("cap", [1, 2, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_the_cap_is_exact(tree, law, cap):
    for prompt, answer in zip(PROMPTS, tree.generate(PROMPTS, temperature=0, max_new_tokens=cap), strict=True):
        assert answer["output_ids"] == law.greedy(prompt, cap)
        assert answer["meta_info"]["finish_reason"]["type"] == "length"


def test_a_stop_inside_an_accepted_path_ends_the_text_there(tree, law):
    greedy = law.greedy(PROMPTS[2], LENGTH)
    stops = sorted(set(greedy[: greedy.index(EOS)]))  # the end token ends it where none of these does
    each = [dict(temperature=0, max_new_tokens=LENGTH, stop_token_ids=[stop], ignore_eos=False) for stop in stops]
    answers = tree.generate([PROMPTS[2]] * len(stops), each=each)
    cut = 0
    for stop, answer in zip(stops, answers, strict=True):
        assert answer["output_ids"] == greedy[: greedy.index(stop) + 1]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        meta = answer["meta_info"]
        if meta["completion_tokens"] > 1:  # prefill's token is no round's
            cut += meta["spec_num_correct_drafts"] + meta["spec_verify_ct"] > meta["completion_tokens"] - 1
    assert cut  # at least one of them stood before the end of its path


def test_a_prefix_from_the_radix_cache_gives_the_same_text(tree, law):
    """Also a prefix that ends inside tokens committed by trees: prompt + output asked for as a prompt."""
    prompt = [11, 4, 9, 9, 5, 6, 8, 10, 7, 7, 4, 5]
    tree.post("/flush_cache", {})
    first = tree.one(prompt, temperature=0, max_new_tokens=LENGTH)
    again = tree.one(prompt, temperature=0, max_new_tokens=LENGTH)
    assert first["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["cached_tokens"] >= len(prompt) - 1
    longer = [*prompt, *first["output_ids"]]
    more = tree.one(longer, temperature=0, max_new_tokens=LENGTH)
    assert more["meta_info"]["cached_tokens"] > len(prompt) + LENGTH // 2
    assert first["output_ids"] == again["output_ids"] == law.greedy(prompt, LENGTH)
    assert more["output_ids"] == law.greedy(longer, LENGTH)


def test_an_aborted_request_leaves_the_others_alone(tree, law):
    results = {}

    def others():
        results["ids"] = tree.ids(PROMPTS, temperature=0, max_new_tokens=LENGTH)

    params = dict(temperature=1, max_new_tokens=400, ignore_eos=True)
    request = tree.request("/generate", dict(input_ids=[6, 6, 6], stream=True, rid="goes", sampling_params=params))
    with DIRECT.open(request, timeout=60) as stream:
        stream.readline()  # it decodes
        waiting = threading.Thread(target=others)
        waiting.start()
        tree.post("/abort_request", dict(rid="goes"))
        lines = [line for line in stream.read().splitlines() if line.startswith(b"data: {")]
        last = json.loads(lines[-1][6:])
    waiting.join(120)
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["completion_tokens"] < 400
    assert results["ids"] == [law.greedy(prompt, LENGTH) for prompt in PROMPTS]
    for _ in range(50):  # and its rows are free again: an idle server can flush
        if tree.idle():
            break
        time.sleep(0.1)
    assert tree.idle()


REFUSED = {
    "return_logprob": dict(return_logprob=True),
    "frequency_penalty": dict(sampling_params=dict(frequency_penalty=0.5)),
    "presence_penalty": dict(sampling_params=dict(presence_penalty=0.5)),
    "repetition_penalty": dict(sampling_params=dict(repetition_penalty=1.2)),
    "min_new_tokens": dict(sampling_params=dict(min_new_tokens=3)),
    "logit_bias": dict(sampling_params=dict(logit_bias={"5": 1.0})),
    "grammar": dict(sampling_params=dict(regex="a+")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(tree, name):
    message = tree.refused(dict(input_ids=[5, 6, 7]) | REFUSED[name])
    assert "DDTREE does not support" in message
    assert name in message


def test_the_histogram_adds_up(tree):
    for answer in tree.generate(PROMPTS, temperature=1, max_new_tokens=LENGTH, sampling_seed=3):
        meta = answer["meta_info"]
        histogram = meta["spec_correct_drafts_histogram"]
        assert len(histogram) <= BLOCK_SIZE
        assert sum(histogram) == meta["spec_verify_ct"]
        assert sum(place * count for place, count in enumerate(histogram)) == meta["spec_num_correct_drafts"]
