"""Whether what was measured is what was meant: floors of physics, the prefix cache, one server for all points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from inferometer.benchmark.fitness import WARM
from inferometer.errors import InputError
from inferometer.scoring.auditing import floors
from inferometer.scoring.auditing.finding import Finding, Severity, floor_seconds, joined, seconds
from inferometer.scoring.auditing.point import Point
from inferometer.scoring.likeness import same_model
from inferometer.steptime.roofline import roofline

UNDER = 0.95
"""Below this share of a floor a figure is impossible; above, it may be the floor's own error (clocks, a boost)."""
SPOILT = 0.05
"""From this share of cached prompt tokens on, figures are not those of the prompts sent; from `WARM` on, a warning."""
SAME = 0.01
"""Sizes of two servers that differ by less are those of two starts of one."""
IGNORED_FLAGS = ("host", "port", "model", "model_tag", "served_model_name", "download_dir", "uvicorn_log_level")
"""Where a server listens and what it calls itself changes no figure; nor does what it logs."""


def ttft_floor(point: Point) -> Finding | None:
    """TTFT below the least time that computing the prompt takes."""
    tokens = point.tokens("prompt_tokens")
    if point.dep is None or tokens is None or point.meta.workload.get("kind") == "sessions":
        return None
    try:
        token_s, once_s = floors.token_floor_s(point.dep), floors.prefill_floor_s(point.dep, 0)
    except InputError:  # a model given by its few figures
        return None
    shared = float(point.meta.workload.get("shared_prefix_len") or 0)
    if not point.has_rows:
        return _stated_ttft(point, once_s + max(tokens - shared, 0) * token_s, tokens)
    cached = np.maximum(shared, np.nan_to_num(point.each.column("cached_tokens"))) if point.sharing_asked else shared
    return _fastest_ttft(point, once_s + np.maximum(point.each.prompt - cached, 0) * token_s)


def _stated_ttft(point: Point, floor_s: float, tokens: float) -> Finding | None:
    stat = point.summary.ttft_s
    name, ttft = next(((n, v) for n in ("p50", "mean", "p99") if (v := getattr(stat, n)) is not None), ("", None))
    if ttft is None or ttft >= UNDER * floor_s:
        return None
    return point.finding("ttft_below_prefill_floor", _ttft_evidence(point, name, ttft, tokens, floor_s), ttft, floor_s)


def _fastest_ttft(point: Point, floor_s: Any) -> Finding | None:
    ratio = point.each.ttft / np.where(floor_s > 0, floor_s, np.nan)
    under = int((ratio < UNDER).sum())
    if not under:
        return None
    worst = int(np.nanargmin(ratio))
    ttft, floor, tokens = float(point.each.ttft[worst]), float(floor_s[worst]), float(point.each.prompt[worst])
    p50 = point.summary.ttft_s.p50 or 0.0
    text = f"{_ttft_evidence(point, 'min', ttft, tokens, floor)}; p50 {seconds(p50)}, {under:,} requests below it"
    return point.finding("ttft_below_prefill_floor", text, ttft, floor)


def _ttft_evidence(point: Point, name: str, ttft_s: float, tokens: float, floor_s: float) -> str:
    """Both floors: the convention's is what people know, the other what nothing can beat."""
    assert point.dep is not None
    usual_s = roofline(point.dep, 0).prefill_floor_s(round(tokens))
    return (
        f"TTFT {name} {seconds(ttft_s)}, below the {floor_seconds(usual_s)} compute floor of its {tokens:,.0f}-token "
        f"prompt (2 P FLOPs a token at peak; {floor_seconds(floor_s)} without embedding and asked-for sharing)"
    )


def tpot_floor(point: Point) -> Finding | None:
    """TPOT below the least time that reading every weight once takes."""
    stat = point.summary.tpot_s
    name, tpot_s = ("p50", stat.p50) if stat.p50 is not None else ("mean", stat.mean)
    if point.dep is None or tpot_s is None:
        return None
    try:
        floor_s = floors.weight_read_floor_s(point.dep)
    except InputError:
        return None
    if tpot_s >= UNDER * floor_s:
        return None
    accepted = point.meta.counters.get("spec_decode_accepted_tokens")
    told = f"; {accepted:,.0f} draft tokens were accepted" if accepted else ""
    text = (
        f"TPOT {name} {seconds(tpot_s)}, below the {floor_seconds(floor_s)} that reading the weights once takes{told}"
    )
    return point.finding("tpot_below_weight_floor", text, tpot_s, floor_s)


def cache_hits(point: Point) -> Finding | None:
    """Prompt tokens from the prefix cache, though no sharing was asked for."""
    if point.sharing_asked or point.hit_share is None or point.hit_share[0] < WARM:
        return None
    share, how = point.hit_share
    severity: Severity = "spoils" if share >= SPOILT else "warning"
    return point.finding("prefix_cache_hits", f"{share:.0%} from the cache: {how}", share, WARM, severity=severity)


def shared_prompts(points: Sequence[Point]) -> Iterator[Finding]:
    """Prompts of one point that another had already sent: by equal seeds, or hits that begin after the first point."""
    open_to_it = [p for p in _in_time(points) if not p.sharing_asked and not _cannot_hit(p)]
    by_seed: dict[str, list[Point]] = {}
    for point in open_to_it:
        if (seed := _seed(point)) is not None:
            by_seed.setdefault(str(seed), []).append(point)
    same = {seed: group for seed, group in by_seed.items() if len(group) > 1}
    for seed, group in same.items():
        yield from _same_seed(seed, group)
    if not same:
        yield from _hits_begin(open_to_it)


def _same_seed(seed: str, group: list[Point]) -> Iterator[Finding]:
    shares = [point.hit_share[0] for point in group if point.hit_share is not None]
    if len(shares) == len(group) and max(shares) < WARM:
        return  # the same prompts, and none of them was found
    worst = max(shares, default=None)
    told = (
        "no counters say whether they were found in the cache"
        if not shares
        else f"up to {worst:.0%} came from the cache"
    )
    warm = worst is not None and worst >= WARM
    text = f"seed {seed} at {len(group)} points, so the same first prompts: {told}"
    yield _shared(group, text, worst, "spoils" if warm else "warning")


def _hits_begin(points: list[Point]) -> Iterator[Finding]:
    known = [(point, point.hit_share[0]) for point in points if point.hit_share is not None]
    if len(known) < 2 or known[0][1] >= WARM:
        return
    warm = [(point, share) for point, share in known[1:] if share >= WARM]
    if warm:
        first, later = known[0][0].where, joined(point.where for point, _ in warm)
        text = f"no cache hits at the first point ({first}), up to {max(s for _, s in warm):.0%} at {later}"
        yield _shared([point for point, _ in warm], text, max(s for _, s in warm), "spoils")


def _shared(group: list[Point], text: str, worst: float | None, severity: Severity) -> Finding:
    one = group[0].finding("prompts_shared_between_points", text, worst, WARM, severity=severity)
    return _over(one, group)


def _over(finding: Finding, points: Sequence[Point]) -> Finding:
    return msgspec.structs.replace(finding, where=joined(point.where for point in points))


def _in_time(points: Sequence[Point]) -> list[Point]:
    """By when they were measured, where all say so; else in the order given."""
    for key in ("started_unix_s", "created"):
        if all(getattr(point.meta, key) for point in points):
            return sorted(points, key=lambda point: getattr(point.meta, key))
    return list(points)


def _seed(point: Point) -> object | None:
    if point.meta.seed is not None:
        return point.meta.seed
    told = point.meta.workload.get("metadata") or {}
    return point.meta.workload.get("seed", told.get("seed") if isinstance(told, dict) else None)


def _cannot_hit(point: Point) -> bool:
    off = False in (point.fact("prefix_caching"), point.fact("enable_prefix_caching"))
    return off or point.meta.workload.get("cache_salt") == "fresh"


# ---------------------------------------------------------------- one server for all


def same_server(points: Sequence[Point]) -> Iterator[Finding]:
    """What the server was at each point, where that differs within an arm."""
    for arm in dict.fromkeys(point.meta.arm for point in points):
        group = [point for point in points if point.meta.arm == arm]
        differences = [text for name in _names(group) if (text := _difference(name, group))]
        if differences:
            more = f"; {len(differences) - MOST} more" if len(differences) > MOST else ""
            text = "; ".join(differences[:MOST]) + more
            yield _over(group[0].finding("server_flags_differ", text, len(differences), 0), group)


MOST = 4
"""Differences that are listed."""


def _names(group: list[Point]) -> list[str]:
    return list(dict.fromkeys(name for point in group for name in _served(point)))


def _served(point: Point) -> dict[str, Any]:
    """What is known of the server at a point, by name; a flag that is not given is known too where others are."""
    meta, log = point.meta, point.meta.server.get("log") or {}
    direct = {"chip": meta.chip, "model": meta.model}
    direct["engine"] = meta.server.get("engine") or meta.deployment.get("engine")
    direct["version"] = meta.server.get("version") or meta.deployment.get("engine_version")
    for name in (
        "kv_cache_tokens",
        "num_gpu_blocks",
        "attention_backend",
        "sampler",
        "prefix_caching",
        "max_model_len",
    ):
        direct[name] = point.fact(name)
    flags = {**(log.get("flags") or {}), **(meta.server.get("flags") or {}), **(meta.deployment.get("flags") or {})}
    shown = {f"flag {name}": value for name, value in flags.items() if _matters(name)}
    return {**{name: value for name, value in direct.items() if value is not None}, **shown}


def _matters(flag: str) -> bool:
    return flag not in IGNORED_FLAGS and "log" not in flag.split("_") and "logging" not in flag


def _difference(name: str, group: list[Point]) -> str:
    """What a thing was where, if it was not the same everywhere; empty if it was, or is not known twice."""
    values: list[tuple[Any, list[Point]]] = []
    for point in group:
        value = _value(name, _served(point))
        if value is None:
            continue
        same = next((points for known, points in values if _alike(name, known, value)), None)
        if same is None:
            values.append((value, [point]))
        else:
            same.append(point)
    if len(values) < 2:
        return ""
    return f"{name.removeprefix('flag ')} " + ", ".join(f"{v} at {joined(p.where for p in at)}" for v, at in values)


def _value(name: str, served: dict[str, Any]) -> Any:
    """None where it is not known; a flag that is not among the others is at its default."""
    flags = name.startswith("flag ") and any(each.startswith("flag ") for each in served)
    return served.get(name, "default" if flags else None)


def _alike(name: str, one: Any, other: Any) -> bool:
    if name == "model":
        return same_model(str(one), str(other)) or str(one).rpartition("/")[2] == str(other).rpartition("/")[2]
    if (
        name in ("kv_cache_tokens", "num_gpu_blocks")
        and isinstance(one, int | float)
        and isinstance(other, int | float)
    ):
        return abs(one - other) <= SAME * max(one, other)
    return bool(one == other)
