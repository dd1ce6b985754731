"""The probe of vLLM's metrics understands the names of old and of new versions, and says which it found."""

import json
from pathlib import Path

import drills.lab.engine
from drills.probes import vllm

#: What an engine of 0.6, of 0.8 and of 0.32 tells; values are made up, names and labels are theirs.
V0 = """
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_swapped{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.6
vllm:time_per_output_token_seconds_sum{model_name="m"} 8.0
vllm:time_per_output_token_seconds_count{model_name="m"} 400.0
process_start_time_seconds 1.7e+09
"""
V08 = """
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 60.0
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 8.0
"""
V09 = """
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 60.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 60.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 8.0
"""


def test_the_first_engine() -> None:
    values, names = vllm.read(V0)
    assert values == {
        "running": 2.0, "swapped": 1.0, "kv_usage": 0.25, "prefix_hit_rate": 0.6,
        "tpot_sum": 8.0, "tpot_count": 400.0, "started": 1.7e9,
    }  # fmt: skip
    assert names["kv_usage"] == "vllm:gpu_cache_usage_perc"
    assert "preemptions" not in names


def test_the_second_engine_before_its_names_were_changed() -> None:
    values, names = vllm.read(V08)
    assert (values["prefix_hits"], values["prefix_queries"]) == (60.0, 100.0)
    assert names["prefix_hits"] == "vllm:gpu_prefix_cache_hits_total"
    assert names["tpot_sum"] == "vllm:time_per_output_token_seconds_sum"


def test_where_both_are_there_the_new_one_counts_once_and_engines_are_put_together() -> None:
    values, names = vllm.read(V09)
    assert values["prefix_hits"] == 60.0
    assert (values["preemptions"], values["kv_usage"]) == (7.0, 0.75)
    assert names["prefix_hits"] == "vllm:prefix_cache_hits_total"
    assert names["tpot_sum"] == "vllm:inter_token_latency_seconds_sum"


def test_what_is_absent_stays_absent() -> None:
    assert vllm.read("") == ({}, {})
    assert vllm.read("# HELP x y\nvllm:num_requests_running NaNcy\n") == ({}, {})


def test_todays_engine_tells_all_but_what_is_gone() -> None:
    """By the families that the lab's engine was captured with."""
    families = json.loads((Path(drills.lab.engine.__file__).parent / "families.json").read_text())
    told = {
        f"{family['name']}{ending}"
        for family in families
        for ending in (("_sum", "_count") if family["type"] in ("histogram", "summary") else ("",))
    }
    missing = {ours for ours, theirs in vllm.NAMES.items() if theirs[0] not in told}
    assert missing == {"swapped", "prefix_hit_rate"}
