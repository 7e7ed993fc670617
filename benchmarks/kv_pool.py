"""The KV pool, predicted from config and flags alone, beside what vLLM found on H100 (and what a peer predicts).

    python benchmarks/kv_pool.py [SHARED_FOLDER]

The rows' ``ok`` start-ups of kv_pool_llmd_planner_h100_vllm0190.csv. They are in sample: the constants of
``steptime/memory.py`` were read from some of them. Then the founding A100 pool, the deployment that must be refused,
and the quality-A rows of kv_pool_issues.csv: another population, of which only the RTX 4090's gave a constant.
"""

from __future__ import annotations

import csv
import math
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from inferometer.errors import InputError  # noqa: E402
from inferometer.specs.chip import Chip, chip  # noqa: E402
from inferometer.specs.deployment import Deployment  # noqa: E402
from inferometer.specs.model import model  # noqa: E402
from inferometer.steptime.memory import GIB, Memory, memory  # noqa: E402

ROWS = "data/kv_pool_llmd_planner_h100_vllm0190.csv"
ISSUES = "data/kv_pool_issues.csv"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One start-up: measured and predicted pool in GiB, or why there is no prediction."""

    row: dict[str, str]
    measured_gib: float
    predicted_gib: float | None = None
    predicted_tokens: int | None = None
    why_not: str = ""

    @property
    def error_pct(self) -> float | None:
        return None if self.predicted_gib is None else 100 * (self.predicted_gib / self.measured_gib - 1)

    @property
    def token_error_pct(self) -> float | None:
        measured = number(self.row["kv_cache_tokens"])
        return None if not measured or self.predicted_tokens is None else 100 * (self.predicted_tokens / measured - 1)

    @property
    def peer_error_pct(self) -> float | None:
        peer = number(self.row["peer_pred_kv_gib"])
        return None if peer is None else 100 * (peer / self.measured_gib - 1)


def number(text: str | None) -> float | None:
    return float(text) if text not in (None, "") else None


def whole(text: str | None, default: int) -> int:
    value = number(text)
    return default if value is None else int(value)


def deployment(row: dict[str, str], device: Chip) -> Deployment:
    """The deployment that a row's config and flags describe; nothing measured goes in."""
    flags: dict[str, Any] = {}
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        if row[name]:
            flags[name] = int(float(row[name]))
    if row["gpu_memory_utilization"]:
        flags["gpu_memory_utilization"] = float(row["gpu_memory_utilization"])
    version = re.match(r"\d+\.\d+(\.\d+)?", row["vllm_version"])
    return Deployment(
        model=model(row["model"]),
        chip=device,
        tensor_parallel_size=whole(row["tp"], 1),
        pipeline_parallel_size=whole(row["pp"], 1),
        dtype=row["dtype"] or "auto",
        quantization=None if row["quantization"] in ("", "None") else row["quantization"],
        kv_cache_dtype=row["kv_cache_dtype"] or "auto",
        engine_version=version.group(0) if version else "",
        flags=flags,
    )


def predict(row: dict[str, str], device: Chip) -> Result:
    measured = number(row["kv_cache_gib"]) or math.nan
    try:
        found = memory(deployment(row, device))
    except InputError as error:
        return Result(row=row, measured_gib=measured, why_not=str(error))
    pool, tokens = found.kv_pool_bytes / GIB, found.kv_cache_tokens
    return Result(row=row, measured_gib=measured, predicted_gib=pool, predicted_tokens=tokens)


def results(shared: Path) -> list[Result]:
    """A result for every row whose start-up succeeded."""
    device = chip("h100-sxm-80gb")
    with (shared / ROWS).open() as file:
        return [predict(row, device) for row in csv.DictReader(file) if row["status"] == "ok"]


def refused(shared: Path) -> str:
    """The reason why Qwen3-14B at tp=5 is refused, which the real engine refused as well."""
    device = chip("h100-sxm-80gb")
    with (shared / ROWS).open() as file:
        row = next(r for r in csv.DictReader(file) if r["model"] == "Qwen/Qwen3-14B" and r["tp"] == "5")
    return predict(row, device).why_not


def founding() -> Memory:
    """The second founding document's A100: Qwen3-8B, vLLM 0.26.0, everything else by default."""
    device = chip("a100-sxm4-80gb")
    return memory(Deployment(model=model("Qwen/Qwen3-8B"), chip=device, engine_version="0.26.0"))


def summary(errors: list[float]) -> str:
    sizes = [abs(e) for e in errors]
    if not sizes:
        return "no rows"
    mean, median = statistics.mean(sizes), statistics.median(sizes)
    return f"mean {mean:.2f} %, median {median:.2f} %, worst {max(sizes):.2f} % over {len(sizes)} rows"


def show(found: list[Result]) -> None:
    print(f"{'model':58} {'ver':7} tp pp  measured predicted    error   tokens     peer")
    for r in found:
        errors = (r.error_pct, r.token_error_pct, r.peer_error_pct)
        cells = [" " * 8 if e is None else f"{e:+7.2f}%" for e in errors]
        predicted = f"{r.predicted_gib:9.2f}" if r.predicted_gib is not None else f"{'-':>9}"
        label = f"{r.row['model'][:46]} {label_of(r.row)}"
        row = r.row
        print(
            f"{label:58} {row['vllm_version'][:6]:7}{row['tp']:>3}{row['pp']:>3} {r.measured_gib:9.2f} {predicted} "
            f"{' '.join(cells)} {r.why_not}"
        )


def label_of(row: dict[str, str]) -> str:
    quantization = "" if row["quantization"] in ("", "None") else row["quantization"]
    dtype = "" if row["dtype"] in ("", "bfloat16") else row["dtype"]
    kv = "" if row["kv_cache_dtype"] in ("", "auto") else f"kv:{row['kv_cache_dtype']}"
    return " ".join(part for part in (dtype, quantization, kv) if part)


def issues(shared: Path) -> None:
    """Start-ups that users pasted, quality A: only those whose chip, model and utilisation are stated."""
    print("\nPasted by users (quality A; the RTX 4090 row gave a constant): GiB or tokens, measured and predicted")
    errors = []
    with (shared / ISSUES).open() as file:
        for row in csv.DictReader(file):
            if row["quality"] != "A" or row["engine"] != "vllm":
                continue
            line, error = issue(row)
            print(line)
            errors += [error] if error is not None else []
    print(summary(errors))


def issue(row: dict[str, str]) -> tuple[str, float | None]:
    """One line, and the error in % where it can be predicted."""
    name = f"{row['model'][:44]:44} {row['gpu'][:26]:26} {row['engine_version'][:14]:14}"
    tokens = number(row["kv_cache_tokens"]) or 16 * (number(row["num_gpu_blocks"]) or 0)
    measured = number(row["kv_cache_gib"]) or tokens
    try:
        found = memory(issue_deployment(row))
    except InputError as error:
        return f"{name} not predicted: {str(error)[:90]}", None
    predicted = found.kv_pool_bytes / GIB if row["kv_cache_gib"] else found.kv_cache_tokens
    if measured <= 0:
        return f"{name} measured {measured:g}, predicted fits={found.fits}", None
    error = 100 * (predicted / measured - 1)
    return f"{name} {measured:12.2f} {predicted:12.2f} {error:+8.1f} %", error


FORMATS = (("nvfp4", "-NVFP4"), ("int4", "-w4a16"), ("4-bit", "-AWQ"), ("fp8", "-FP8"))
SAME_SHAPE = {"Qwen3.8-27B": "Qwen3.6-27B"}
"""Read off the row's own note: 16 of 64 layers attend, with 4 KV heads of 256."""


def issue_name(row: dict[str, str]) -> str:
    """The model with the row's weight format, where its name does not say it."""
    name = re.sub(r"\(.*\)", "", row["model"]).strip()
    for known, same in SAME_SHAPE.items():
        name = name.replace(known, same)
    ending = next((e for word, e in FORMATS if word in row["weight_format"]), "")
    return name if ending.lower() in name.lower() else name + ending


def issue_deployment(row: dict[str, str]) -> Deployment:
    version = re.search(r"\d+\.\d+(\.\d+)?", row["engine_version"])
    if version is None and not re.search(r"0\.2x|2026", row["engine_version"]):
        raise InputError.because(f"vLLM {row['engine_version']!r} is older than the presets")
    device = chip(re.sub(r"\(.*\)", "", row["gpu"]).strip())
    if row["device_total_gib"]:
        device = msgspec.structs.replace(device, reported_memory_bytes=int(float(row["device_total_gib"]) * GIB))
    flags: dict[str, Any] = {
        n: int(float(row[n])) for n in ("max_model_len", "max_num_batched_tokens", "max_num_seqs") if row[n]
    }
    flags |= {"gpu_memory_utilization": float(row["gpu_memory_utilization"])} if row["gpu_memory_utilization"] else {}
    if row["enforce_eager"] == "True":
        flags["enforce_eager"] = True
    return Deployment(
        model=model(issue_name(row)),
        chip=device,
        tensor_parallel_size=whole(row["tp"], 1),
        kv_cache_dtype=row["kv_cache_dtype"] or "auto",
        engine_version=version.group(0) if version else "",
        flags=flags,
    )


def main() -> None:
    shared = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("INFEROMETER_SHARED") or ROOT.parent / "shared")
    found = results(shared)
    show(found)
    predicted = [r for r in found if r.error_pct is not None]
    peers = [r for r in predicted if r.peer_error_pct is not None]
    print(f"\n{len(predicted)} of {len(found)} rows predicted")
    for r in found:
        if r.why_not:
            print(f"  not: {r.row['model']}: {r.why_not}")
    print(f"KV GiB, all rows:         {summary([r.error_pct for r in predicted if r.error_pct is not None])}")
    print(f"KV tokens, all rows:      {summary([e for r in predicted if (e := r.token_error_pct) is not None])}")
    print(f"KV GiB, the peer's rows:  {summary([r.error_pct for r in peers if r.error_pct is not None])}")
    print(f"  the peer on them:       {summary([r.peer_error_pct for r in peers if r.peer_error_pct is not None])}")
    print(f"Qwen3-14B at tp=5: {refused(shared)}")
    a100 = founding()
    print(
        f"founding A100: {a100.kv_pool_bytes / GIB:.2f} GiB, {a100.kv_cache_tokens} tokens, "
        f"{a100.num_gpu_blocks} blocks; measured 56.34 GiB, 410240, 25640: "
        f"{100 * (a100.kv_cache_tokens / 410240 - 1):+.2f} %"
    )
    issues(shared)


if __name__ == "__main__":
    main()
