"""The ledger of one device: what its memory is promised to.

    used      = resident + loading + unreturned + scratch                      what may be in memory now
    committed = used - leaving + reserved                                      what it will be when all that was decided is done

`resident`: charges of copies READY, DRAINING and UNLOADING. `leaving`: the part of it that is DRAINING or UNLOADING. `loading`: holds of
copies LOADING. `reserved`: holds of loads that wait until the copies leaving have left. `unreturned`: bytes that unloads did not give
back. `scratch`: the largest run peaks that can coincide (`runs_at_once` of them).
Neither sum exceeds the budget by a decision of the planner; a measurement or a smaller budget may show that it does, and then copies leave.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass

from modelpool.core.copies import Copy
from modelpool.core.ready import ReadyCopies


@dataclass(frozen=True, slots=True)
class Need:
    """What a copy takes: `charge` once loaded, `load_peak` while loading, `run_peak` on top while it runs (bytes).

    source: `user`, `measured` or `estimate`.
    """

    charge: int
    load_peak: int
    run_peak: int
    source: str

    @property
    def hold(self) -> int:
        """What is set aside while it loads, its run peak being counted as scratch."""
        return max(self.load_peak - self.run_peak, self.charge)

    @property
    def alone(self) -> int:
        """The least budget of a device that can hold it."""
        return self.hold + self.run_peak


class Device:
    """One device of one instance: its budget, its copies, and the sums over them, kept as copies move."""

    __slots__ = (
        "budget_bytes",
        "copies",
        "instance",
        "kind",
        "leaving",
        "leaving_bytes",
        "loading",
        "loading_bytes",
        "name",
        "peaks",
        "ready",
        "reserved",
        "resident_bytes",
        "runs_at_once",
        "unreturned_bytes",
    )

    def __init__(self, instance: str, name: str, budget_bytes: int, runs_at_once: int) -> None:
        self.instance = instance
        self.name = name
        self.kind = name.partition(":")[0]
        self.budget_bytes = budget_bytes
        self.runs_at_once = runs_at_once
        self.copies: dict[int, Copy] = {}
        self.loading: dict[int, Copy] = {}
        self.leaving: dict[int, Copy] = {}
        self.ready = ReadyCopies()
        self.peaks: list[tuple[int, int]] = []
        self.reserved: dict[str, Need] = {}
        self.resident_bytes = 0
        self.loading_bytes = 0
        self.leaving_bytes = 0
        self.unreturned_bytes = 0

    def is_called(self, name: str) -> bool:
        """Whether a user who writes this name means this device: `cuda:0`, `cuda`, `triton0/cuda:0` or `triton0`."""
        return name in (self.name, self.kind, self.instance, f"{self.instance}/{self.name}")

    # --- copies come, change and go --------------------------------------------------------------------------------------------
    def add_loading(self, copy: Copy, need: Need) -> None:
        """A load begins: its hold is taken."""
        copy.charge_bytes = need.hold
        copy.load_peak_bytes = need.load_peak
        copy.run_peak_bytes = need.run_peak
        self.copies[copy.ident] = self.loading[copy.ident] = copy
        self.loading_bytes += need.hold
        insort(self.peaks, (need.run_peak, copy.ident))

    def add_held(self, copy: Copy, charge_bytes: int, run_peak_bytes: int) -> None:
        """A copy that was there before us."""
        copy.charge_bytes = charge_bytes
        copy.run_peak_bytes = run_peak_bytes
        self.copies[copy.ident] = copy
        self.resident_bytes += charge_bytes
        insort(self.peaks, (run_peak_bytes, copy.ident))

    def loaded(self, copy: Copy, charge_bytes: int) -> None:
        """A load ended: the hold becomes the charge."""
        del self.loading[copy.ident]
        self.loading_bytes -= copy.charge_bytes
        self.resident_bytes += charge_bytes
        copy.charge_bytes = charge_bytes

    def set_run_peak(self, copy: Copy, run_peak_bytes: int) -> None:
        """A larger (or smaller) peak was measured."""
        del self.peaks[bisect_left(self.peaks, (copy.run_peak_bytes, copy.ident))]
        copy.run_peak_bytes = run_peak_bytes
        insort(self.peaks, (run_peak_bytes, copy.ident))

    def leaves(self, copy: Copy) -> None:
        """A copy begins to leave: it is on its way out, or drains first."""
        self.ready.discard(copy)
        self.leaving[copy.ident] = copy
        self.leaving_bytes += copy.charge_bytes

    def stays(self, copy: Copy) -> None:
        """A copy that was leaving stays after all."""
        self.ready.add(copy)
        del self.leaving[copy.ident]
        self.leaving_bytes -= copy.charge_bytes

    def remove(self, copy: Copy) -> None:
        """A copy is gone, from whatever state."""
        del self.copies[copy.ident]
        self.ready.discard(copy)
        del self.peaks[bisect_left(self.peaks, (copy.run_peak_bytes, copy.ident))]
        if self.loading.pop(copy.ident, None) is not None:
            self.loading_bytes -= copy.charge_bytes
            return
        self.resident_bytes -= copy.charge_bytes
        if self.leaving.pop(copy.ident, None) is not None:
            self.leaving_bytes -= copy.charge_bytes

    # --- sums ------------------------------------------------------------------------------------------------------------------
    def scratch_bytes(self) -> int:
        """The largest run peaks that can coincide now."""
        return sum(peak for peak, _ in self.peaks[-self.runs_at_once :])

    def used_bytes(self) -> int:
        """What may be in memory now."""
        return self.resident_bytes + self.loading_bytes + self.unreturned_bytes + self.scratch_bytes()

    def free_bytes(self) -> int:
        """What is left of the budget (never below 0)."""
        return max(0, self.budget_bytes - self.used_bytes())

    def committed_bytes(self, need: Need | None = None, without: Collection[int] = (), model: str = "") -> int:
        """What is promised when all decisions are done, with one more load (`need`) and without some copies.

        model: a reservation of this model's own is not counted.
        """
        reserved = [held for name, held in self.reserved.items() if name != model]
        base = self.resident_bytes - self.leaving_bytes + self.loading_bytes + self.unreturned_bytes
        base += sum(held.hold for held in reserved)
        base -= sum(self.copies[ident].charge_bytes for ident in without)
        peaks = [held.run_peak for held in reserved]
        if need is not None:
            base += need.hold
            peaks.append(need.run_peak)
        staying = 0
        for peak, ident in reversed(self.peaks):
            if staying == self.runs_at_once or peak == 0:
                break
            if ident in without or ident in self.leaving:
                continue
            peaks.append(peak)
            staying += 1
        peaks.sort(reverse=True)
        return base + sum(peaks[: self.runs_at_once])

    def fits(self, need: Need | None, without: Collection[int] = (), model: str = "") -> bool:
        """Whether what is promised, with one more load and without some copies, keeps to the budget."""
        return self.committed_bytes(need, without, model) <= self.budget_bytes

    def starts(self, need: Need) -> bool:
        """Whether a load may begin in what is free now."""
        peaks = sorted([need.run_peak, *(peak for peak, _ in self.peaks[-self.runs_at_once :])], reverse=True)
        used = self.resident_bytes + self.loading_bytes + self.unreturned_bytes + sum(peaks[: self.runs_at_once])
        return used + need.hold <= self.budget_bytes
