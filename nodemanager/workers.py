"""Which worker processes of an engine are there, by their titles."""

from __future__ import annotations

import re

import psutil

# vLLM names its processes with setproctitle: VLLM::Worker[_DPd][_PPp][_PCPc][_TPt][_DCPd][_EPe].
WORKER_TITLE = re.compile(r"VLLM::Worker")


def worker_titles(engine_pid: int, pattern: re.Pattern[str] = WORKER_TITLE) -> list[str]:
    """Titles of the living workers below the engine's main process, sorted.

    One pass over the process table; with many processes tens of milliseconds, so run it in a thread.
    """
    try:
        children = psutil.Process(engine_pid).children(recursive=True)
    except psutil.Error:
        return []
    found = []
    for child in children:
        try:
            title = " ".join(child.cmdline()) or child.name()
            if pattern.match(title) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(title.strip())
        except psutil.Error:
            continue
    return sorted(found)
