"""A calibration from a running server's ``/metrics``: what its histograms say of the time between pages.

Two pages give one point: mean lengths, mean TTFT and gap, and the mean in flight (by Little's law, or by the looks in
between). Means only, over whatever load there was, so a profile made so says that it is coarse.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from inferometer.benchmark.detect import detect
from inferometer.benchmark.job import Connection
from inferometer.benchmark.scrape import Scraper, read_pages
from inferometer.benchmark.target import parse_target, shown_url
from inferometer.errors import FormatError, InputError
from inferometer.records.importers.metrics_pages import STAMP
from inferometer.records.prometheus import Histogram, Page, cache_config, deltas, means, parse_page
from inferometer.records.run import Run, RunMeta, make_run
from inferometer.scoring.calibrate import calibrate
from inferometer.scoring.fitting import NOMINAL_NOISE
from inferometer.scoring.points import WAVES
from inferometer.specs.checks import positive, whole
from inferometer.specs.deployment import Deployment
from inferometer.steptime.efficiencies import efficiencies
from inferometer.steptime.profile import Profile

COARSE = "fitted to histograms of a live server: means only"
LEAST_FINISHED = 5
"""Requests that must end between two pages for their means to be used ..."""
ENOUGH_FINISHED = 30
"""... and of pages that were taken one after the other, cut where so many have."""
FEW_PAGES = 10
"""So many pages at most are cut at each of them; as many looks give the mean in flight better than Little's law."""
HISTOGRAMS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")

ARRANGEMENTS = {"spread": "evenly spread", WAVES: "in waves, together"}
"""Histograms do not tell which of the two a load is nearer to: that which explains it with less is taken."""
USUAL_DISTANCE = 0.5
"""Of a constant's logarithm from the family's value."""

Pages = Sequence[tuple[float, str]]
"""Pages of ``/metrics`` with when they were taken, in seconds."""


def calibrate_live(
    pages: Pages,
    dep: Deployment,
    *,
    fit: Sequence[str] | None = None,
    prefix_hit_rate: float | None = None,
    model: str | None = None,
    name: str = "",
) -> Profile:
    """Fit what a running server's histograms can tell: a point for the time between two pages.

    Between two pages some requests only begin or only end; over minutes this evens out. Each point is simulated as
    a closed loop of the mean lengths at the mean in flight.

    Args:
        pages: at least two pages of ``/metrics`` and when they were taken.
        dep: what the server runs; its ``max_num_batched_tokens`` must be given.
        fit: constants that are wanted; None: all that the points can tell.
        prefix_hit_rate: where the server does not count its prefix cache.
        model: whose series, where a page has several models'.
        name: of the profile.

    Raises:
        InputError: fewer than two pages, no engine's histograms on them, too few requests between any two, or what
            `calibrate` refuses.

    >>> import inferometer as im
    >>> dep = im.Deployment(model=im.model("Qwen/Qwen3-8B"), chip=im.chip("l4"))
    >>> calibrate_live([(0.0, "")], dep)
    Traceback (most recent call last):
    inferometer.errors.InputError: cannot calibrate: one page says nothing; take a second one later
    """
    runs, found, refused = live_runs(pages, model), [], []
    for arrangement in ARRANGEMENTS:
        each, others = [_arranged(run, arrangement) for run in runs], len(runs) > 2
        try:
            profile = calibrate(each, dep, fit=fit, prefix_hit_rate=prefix_hit_rate, leave_one_out=others, name=name)
        except InputError as fault:  # a load so arranged may tell nothing, and the other all the same
            refused.append(fault)
        else:
            found.append((_misfit(profile, dep), arrangement, profile))
    if not found:
        raise refused[0]
    _, arrangement, best = min(found, key=lambda each: each[0])
    note = f"requests are taken to come {ARRANGEMENTS[arrangement]}, which fits better than the other way"
    return msgspec.structs.replace(best, coarse=COARSE, notes=[note, *best.notes])


def _arranged(run: Run, arrangement: str) -> Run:
    meta = msgspec.structs.replace(run.meta, id="", workload={**run.meta.workload, "arrangement": arrangement})
    return Run(meta=meta, requests=run.requests, server=run.server)


def _misfit(profile: Profile, dep: Deployment) -> float:
    """Squares of the residuals over their usual noise, and of how far the constants are from the family's."""
    family = efficiencies(dep.chip)
    moved = [math.log(value / getattr(family, name)) / USUAL_DISTANCE for name, value in profile.params.items()]
    noise = {"tpot": NOMINAL_NOISE["tpot"], "itl": NOMINAL_NOISE["tpot"], "ttft": NOMINAL_NOISE["ttft"]}
    left = [row["error_pct"] / 100 / noise[row["metric"].split("_")[0]] for row in profile.residuals]
    return float(sum(each**2 for each in (*moved, *left)))


def saved_pages(path: str | Path) -> list[tuple[float, str]]:
    """The pages of a file in which each stands after a line ``# ts UNIX_SECONDS``, as ``bench`` keeps them.

    Raises:
        FormatError: no such file, or none of its pages has such a line.
    """
    file = Path(path).expanduser()
    try:
        pieces = STAMP.split(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise FormatError.because(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(pieces) == 1:
        raise FormatError.because(f"{file}: no page of /metrics there stands after a line '# ts UNIX_SECONDS'")
    return [(float(stamp), text) for stamp, text in zip(pieces[1::2], pieces[2::2], strict=True)]


def live_runs(pages: Pages, model: str | None = None) -> list[Run]:
    """A run of stated means for each time between pages in which enough requests ended.

    Raises:
        InputError: fewer than two pages; no engine's series on one; no time with enough requests.
    """
    if len(pages) < 2:
        raise InputError.because("cannot calibrate: one page says nothing; take a second one later")
    read = [(time_s, parse_page(text, model)) for time_s, text in pages]
    if any(page.engine is None for _, page in read):
        raise InputError.because("cannot calibrate: a page has no engine's metrics (vLLM, SGLang, TGI, TensorRT-LLM)")
    runs = [run for window in _windows(read) if (run := _between(window)) is not None]
    if not runs:
        raise InputError.because(
            f"cannot calibrate: fewer than {LEAST_FINISHED} requests ended between two pages; wait longer, or "
            "send some load"
        )
    return runs


_Read = tuple[float, Page]


def _windows(read: list[_Read]) -> list[list[_Read]]:
    """The pages cut where enough requests have ended since the last cut; idle time at both ends is left out."""
    ended = [_ended(page) for _, page in read]
    worked = [i for i in range(1, len(read)) if _work(read[i - 1][1]) != _work(read[i][1])]
    busy = range(worked[0] - 1, worked[-1] + 1) if worked else range(0)
    windows: list[list[_Read]] = []
    at = busy.start
    for i in busy:
        if ended[i] - ended[at] >= LEAST_FINISHED and (
            len(read) <= FEW_PAGES or ended[i] - ended[at] >= ENOUGH_FINISHED
        ):
            windows.append(read[at : i + 1])
            at = i
    if not windows and busy and ended[busy[-1]] - ended[busy[0]] >= LEAST_FINISHED:
        windows.append([read[i] for i in busy])
    return windows


def _ended(page: Page) -> float:
    """Requests that have ended since the server began."""
    return sum(_count(each.histograms.get("e2e_s")) for each in page.replicas.values())


def _work(page: Page) -> float:
    """Tokens that the server has computed since it began."""
    names = ("prompt_tokens", "generation_tokens")
    return sum(each.counters.get(name, 0.0) for each in page.replicas.values() for name in names)


def _count(histogram: Histogram | None) -> float:
    return (histogram.count or 0.0) if histogram is not None else 0.0


def _held(window: list[_Read]) -> float | None:
    """The median of running + waiting over the looks at a busy server; None where they are few."""
    gauges = [[each.gauges for each in page.replicas.values()] for _, page in window]
    held = [sum(each.get("running", 0.0) + each.get("waiting", 0.0) for each in page) for page in gauges]
    busy = [each for each in held if each > 0]
    return median(busy) if len(busy) >= FEW_PAGES else None


def watch(url: str, interval_s: float, points: int = 1, api_key: str | None = None) -> list[tuple[float, str]]:
    """Pages of a running server's ``/metrics``, one now and one after each interval: when each came, and its text.

    Raises:
        InputError: an address that is none, a server without metrics, one that does not answer, an interval or number
            of points that is not above 0.
    """
    positive("interval_s", interval_s, "a number of seconds")
    whole("points", points, 1)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "metrics.prom"
        asyncio.run(_watch(parse_target(url, api_key=api_key), interval_s, points, journal))
        pages = [(unix, text) for unix, _, text in read_pages(journal)]
    if len(pages) < 2:
        raise InputError.because(f"{url}: fewer than two pages of /metrics could be read")
    return pages


async def _watch(connection: Connection, interval_s: float, points: int, journal: Path) -> None:
    server = await detect(connection)
    if not server.metrics_urls:
        raise InputError.because(f"{shown_url(connection)}: {'; '.join(server.notes) or 'it has no /metrics'}")
    async with Scraper(server.metrics_urls, journal, connection=connection) as scraper:
        await scraper.once()
        for _ in range(points):
            await asyncio.sleep(interval_s)
            await scraper.once()


def _between(window: list[_Read]) -> Run | None:
    """What was counted from the first page of a window to the last."""
    (before_s, before), (after_s, after) = window[0], window[-1]
    counted, span_s = deltas(before, after), after_s - before_s
    ended = counted.get("e2e_s.count", 0.0)
    if ended < LEAST_FINISHED or not span_s > 0:
        return None
    mean = means({name: v for name, v in counted.items() if name.split(".")[0] in HISTOGRAMS})
    stated = {f"{name}.mean": value for name, value in mean.items() if value > 0}
    stated |= {"completed": ended, "requests": ended, "request_per_s": ended / span_s}
    if (held := _held(window)) is not None:
        stated["mean_in_flight"] = held
    if counted.get("generation_tokens"):
        stated["output_tok_per_s"] = counted["generation_tokens"] / span_s
    stated |= {name: each * ended for name, each in _lengths(counted, mean, ended).items()}
    server = {"engine": after.engine, **_cache(after)}
    meta = RunMeta(
        kind="imported",
        name=f"{before_s:.0f} to {after_s:.0f} s",
        tool=f"{after.engine} /metrics",
        duration_s=span_s,
        stated=stated,
        counters=counted,
        server=server,
    )
    return make_run(meta)


def _lengths(counted: dict[str, float], mean: dict[str, float], ended: float) -> dict[str, float]:
    """Mean prompt and output tokens of a request.

    Prompts are counted with first tokens, so their number is that of the TTFTs. Outputs are counted token by token: the
    mean of the requests that ended is their decode time over their time a token.
    """
    found = {}
    if counted.get("prompt_tokens"):
        found["prompt_tokens"] = counted["prompt_tokens"] / (counted.get("ttft_s.count") or ended)
    if all(mean.get(name) for name in ("e2e_s", "ttft_s", "tpot_s")):
        found["output_tokens"] = max((mean["e2e_s"] - mean["ttft_s"]) / mean["tpot_s"], 0.0) + 1
    elif counted.get("generation_tokens"):
        found["output_tokens"] = counted["generation_tokens"] / ended
    return found


def _cache(page: Page) -> dict[str, bool]:
    """Whether the engine says that it caches prefixes (vLLM's ``cache_config_info``)."""
    known = cache_config(page).get("enable_prefix_caching")
    return {"prefix_caching": known} if isinstance(known, bool) else {}
